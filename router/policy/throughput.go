package policy

import "strings"

// Relative arithmetic rate of one device by the type it computes in; bf16 is 1. Weight-only
// formats (awq, gptq, int4) compute in 16 bits and count as such.
const (
	RateFP32 float32 = 0.5
	RateBF16 float32 = 1
	RateFP8  float32 = 2
	RateFP4  float32 = 4
)

// Throughput is a node's relative speed from its tensor-parallel degree and dtype, for
// Candidate.Throughput; unknown (NaN) when the dtype is not recognised. A tp below 1 counts
// as 1.
func Throughput(tp int, dtype string) float32 {
	return float32(max(tp, 1)) * rate(dtype)
}

func rate(dtype string) float32 {
	switch d := strings.TrimPrefix(strings.ToLower(dtype), "torch."); {
	case d == "float32" || d == "fp32" || d == "f32":
		return RateFP32
	case d == "bfloat16" || d == "bf16" || d == "float16" || d == "fp16" || d == "f16" || d == "half":
		return RateBF16
	case strings.HasPrefix(d, "awq") || strings.HasPrefix(d, "gptq") || d == "int4":
		return RateBF16
	case strings.HasPrefix(d, "fp8") || strings.HasPrefix(d, "float8") || d == "int8" || d == "w8a8":
		return RateFP8
	case strings.HasPrefix(d, "fp4") || d == "nvfp4" || d == "mxfp4":
		return RateFP4
	}
	return Unknown()
}
