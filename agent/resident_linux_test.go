package agent

import "testing"

// TestCodeOf: only the program's own code is given back.
func TestCodeOf(t *testing.T) {
	const exe = "/usr/bin/cgn-agent"
	if from, to, ok := codeOf("00400000-00ec0000 r-xp 00000000 fe:00 9979546                            "+
		"/usr/bin/cgn-agent", exe); !ok || from != 0x400000 || to != 0xec0000 {
		t.Errorf("%x %x %t", from, to, ok)
	}
	for _, line := range []string{
		"", "00400000-00ec0000 r--p 00000000 fe:00 9 /usr/bin/cgn-agent",
		"00400000-00ec0000 rwxp 00000000 fe:00 9 /usr/bin/cgn-agent",
		"00400000-00ec0000 r-xp 00000000 fe:00 9 /usr/lib/libc.so", "7ffc0000-7ffc2000 r-xp 00000000 00:00 0 [vdso]",
		"00400000 r-xp 00000000 fe:00 9 /usr/bin/cgn-agent",
		"00ec0000-00400000 r-xp 00000000 fe:00 9 /usr/bin/cgn-agent",
	} {
		if _, _, ok := codeOf(line, exe); ok {
			t.Errorf("%q is taken for code", line)
		}
	}
	releaseStart()
	releaseStart() // the test goes on in code that was given back
}
