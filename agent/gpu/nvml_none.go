//go:build !(cgo && nvml)

package gpu

// BuiltIn tells whether this program can load NVML.
const BuiltIn = false

func open(string) (driver, error) { return nil, errBuiltWithout }
