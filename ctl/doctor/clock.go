package doctor

import "golang.org/x/sys/unix"

// examineClock reports a clock that nothing keeps right; nil: the kernel calls it synchronised, or
// does not say. Certificates and the limits of keys depend on the clock.
func examineClock() *finding {
	state, err := unix.Adjtimex(new(unix.Timex))
	if err != nil || state != unix.TIME_ERROR {
		return nil
	}
	return &finding{warning, kindClock, "", "", "the kernel calls this host's clock not synchronised, and " +
		"certificates begin and end by it", "run chrony or systemd-timesyncd"}
}
