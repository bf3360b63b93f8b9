package policy

import "strings"

// These constants are a device's arithmetic rate by data type, relative to bf16. The rate stands
// for the speed of prefill, which is bound by arithmetic. Weight-only formats (awq, gptq, int4,
// llama.cpp's q4_k_m and similar) save memory, not arithmetic. Weight-only formats multiply widened
// weights in 16 bits and count as 16-bit types.
const (
	RateFP32 float32 = 0.5
	RateBF16 float32 = 1
	RateFP8  float32 = 2
	RateFP4  float32 = 4
)

// Throughput returns a node's relative speed for Candidate.Throughput, from its tensor-parallel
// degree and dtype. Throughput returns unknown (NaN) when tp is below 1 or the dtype is not
// recognised.
func Throughput(tp int, dtype string) float32 {
	if tp < 1 {
		return Unknown()
	}
	return float32(tp) * rate(dtype)
}

func rate(dtype string) float32 {
	switch d := strings.TrimPrefix(strings.ToLower(dtype), "torch."); {
	case d == "float32" || d == "fp32" || d == "f32":
		return RateFP32
	case d == "bfloat16" || d == "bf16" || d == "float16" || d == "fp16" || d == "f16" || d == "half":
		return RateBF16
	case strings.HasPrefix(d, "awq") || strings.HasPrefix(d, "gptq") || d == "int4" || isGGUF(d):
		return RateBF16
	case strings.HasPrefix(d, "fp8") || strings.HasPrefix(d, "float8") || d == "int8" || d == "w8a8":
		return RateFP8
	case strings.HasPrefix(d, "fp4") || d == "nvfp4" || d == "mxfp4":
		return RateFP4
	}
	return Unknown()
}

// isGGUF says whether d is a weight format of llama.cpp: q8_0, q4_k_m, iq3_xs.
func isGGUF(d string) bool {
	d = strings.TrimPrefix(d, "i")
	return len(d) > 2 && d[0] == 'q' && d[1] >= '1' && d[1] <= '8' && d[2] == '_'
}
