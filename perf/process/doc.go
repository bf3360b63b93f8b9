// Package process starts programs to be measured and reads from the kernel what they use: CPU
// time, memory, system calls. Linux only; elsewhere the readings are errors.
package process
