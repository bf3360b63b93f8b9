package enginemetrics

import "bytes"

var loraInfo = []byte("lora_requests_info")

// Adapters reads vLLM's metric about LoRA adapters, vllm:lora_requests_info. Adapters returns how
// many adapters the engine can use at once; 0 if the page does not say. used is called with the
// name of each adapter that had requests, and when, in Unix seconds of the engine's clock. Each set
// of adapters that ran together keeps a series, so used may be called several times for a name. The
// name is valid during the call. newest is the time of the latest series.
//
// Adapters never fails: it skips what it cannot parse. Adapters allocates nothing.
func Adapters(page []byte, used func(name []byte, at float64)) (slots int, newest float64) {
	for {
		at := bytes.Index(page, loraInfo)
		if at < 0 {
			return slots, newest
		}
		begin := bytes.LastIndexByte(page[:at], '\n') + 1
		end := bytes.IndexByte(page[at:], '\n')
		if end < 0 {
			end = len(page) - at
		}
		line := page[begin : at+end]
		page = page[at+end:]
		if name, rest := metricName(line); isLoRAInfo(name) {
			slots, newest = loraSeries(rest, used, slots, newest)
		}
	}
}

func isLoRAInfo(name []byte) bool {
	engine, short, _ := bytes.Cut(name, []byte(":"))
	if len(short) == 0 {
		engine, short, _ = bytes.Cut(name, []byte("_"))
	}
	return string(engine) == "vllm" && bytes.Equal(short, loraInfo)
}

// loraSeries reads one series of the metric.
func loraSeries(rest []byte, used func(name []byte, at float64), slots int, newest float64) (int, float64) {
	if n, ok := number(label(rest, "max_lora")); ok && n >= 1 && n <= maxAdapters {
		slots = int(n)
	}
	at, ok := number(value(rest))
	if !ok {
		return slots, newest
	}
	for name := range bytes.SplitSeq(label(rest, "running_lora_adapters"), []byte(",")) {
		if name = bytes.TrimSpace(name); len(name) > 0 {
			used(name, at)
		}
	}
	return slots, max(newest, at)
}

// maxAdapters is the largest plausible number of adapters that an engine can use at once.
const maxAdapters = 1 << 16
