package process

import (
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// callNames are the names of the calls that servers make. Other calls are named by their number.
var callNames = map[int]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_READV: "readv", unix.SYS_WRITEV: "writev",
	unix.SYS_RECVFROM: "recvfrom", unix.SYS_SENDTO: "sendto", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_SPLICE: "splice", unix.SYS_EPOLL_PWAIT: "epoll_pwait", unix.SYS_EPOLL_CTL: "epoll_ctl",
	unix.SYS_PPOLL:   "ppoll",
	unix.SYS_ACCEPT4: "accept4", unix.SYS_CLOSE: "close", unix.SYS_SOCKET: "socket", unix.SYS_CONNECT: "connect",
	unix.SYS_SHUTDOWN: "shutdown", unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt",
	unix.SYS_GETSOCKNAME: "getsockname", unix.SYS_GETPEERNAME: "getpeername", unix.SYS_FCNTL: "fcntl",
	unix.SYS_DUP3:  "dup3",
	unix.SYS_FUTEX: "futex", unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_SCHED_YIELD: "sched_yield",
	unix.SYS_TGKILL: "tgkill",
	unix.SYS_GETPID: "getpid", unix.SYS_GETTID: "gettid", unix.SYS_MADVISE: "madvise", unix.SYS_MMAP: "mmap",
	unix.SYS_MUNMAP: "munmap",
	unix.SYS_CLONE:  "clone", unix.SYS_RT_SIGRETURN: "rt_sigreturn", unix.SYS_RT_SIGPROCMASK: "rt_sigprocmask",
	unix.SYS_SIGALTSTACK: "sigaltstack", unix.SYS_CLOCK_GETTIME: "clock_gettime", unix.SYS_GETRANDOM: "getrandom",
	unix.SYS_EVENTFD2: "eventfd2", unix.SYS_TIMERFD_SETTIME: "timerfd_settime", unix.SYS_IOCTL: "ioctl",
}

func callName(id int) string {
	if name, ok := callNames[id]; ok {
		return name
	}
	if runtime.GOARCH == "amd64" { // calls that newer architectures do not have
		switch id {
		case 7:
			return "poll"
		case 232:
			return "epoll_wait"
		}
	}
	return "call " + strconv.Itoa(id)
}
