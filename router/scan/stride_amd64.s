#include "textflag.h"

// PASS adds to sum the products of the pairs of words of Y0, the key's words at key added to each.
#define PASS(key, sum) \
	VPADDD   key, Y0, Y1 \
	VPSRLQ   $32, Y1, Y2 \
	VPMULUDQ Y1, Y2, Y1  \
	VPADDQ   Y1, sum, sum

#define WORDS(at) \
	VMOVDQU at(DX), Y0       \
	PASS(at(SI), Y8)         \
	PASS((at+16)(SI), Y9)

// func sumAVX2(sums *[8]uint64, key *strideKey, text *byte)
TEXT ·sumAVX2(SB), NOSPLIT, $0-24
	MOVQ  sums+0(FP), DI
	MOVQ  key+8(FP), SI
	MOVQ  text+16(FP), DX
	MOVQ  $64, CX
	VPXOR Y8, Y8, Y8
	VPXOR Y9, Y9, Y9

words:
	WORDS(0)
	WORDS(32)
	WORDS(64)
	WORDS(96)
	ADDQ $128, SI
	ADDQ $128, DX
	DECQ CX
	JNZ  words
	VMOVDQU Y8, (DI)
	VMOVDQU Y9, 32(DI)
	VZEROUPPER
	RET
