package gateway

import (
	"strconv"
	"time"
)

// appendDuration appends d as OpenAI writes durations: 12ms, 18.642s, 6m0s, 1h5m0s.
func appendDuration(b []byte, d time.Duration) []byte {
	ms := int64(max(d+time.Millisecond-1, 0) / time.Millisecond)
	if ms > 0 && ms < 1000 {
		return append(strconv.AppendInt(b, ms, 10), "ms"...)
	}
	hours, minutes, seconds, rest := ms/3600000, ms/60000%60, ms/1000%60, ms%1000
	if hours > 0 {
		b = append(strconv.AppendInt(b, hours, 10), 'h')
	}
	if hours > 0 || minutes > 0 {
		b = append(strconv.AppendInt(b, minutes, 10), 'm')
	}
	b = strconv.AppendInt(b, seconds, 10)
	if rest > 0 {
		b = append(b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return append(b, 's')
}
