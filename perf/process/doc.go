// Package process starts programs to be measured, and reads their CPU time, memory and system calls
// from the kernel. On other systems than Linux the readings are errors.
package process
