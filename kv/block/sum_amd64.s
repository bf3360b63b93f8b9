#include "textflag.h"

// x^(2048+32) and x^(2048-32) modulo the polynomial, bits reversed. They move the halves of 128
// bits by 256 bytes.
DATA by256<>+0(SB)/8, $0xdcb17aa4
DATA by256<>+8(SB)/8, $0xb9e02b86
GLOBL by256<>(SB), RODATA|NOPTR, $16

// func fold(rest *[256]byte, p *byte, n int, state uint32)
TEXT ·fold(SB), NOSPLIT, $0-28
	MOVQ rest+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL state+24(FP), AX
	VBROADCASTI32X4 by256<>(SB), Z4
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD AX, X5
	VPXORQ Z5, Z0, Z0
	JMP next

loop:
	VPCLMULQDQ $0x00, Z4, Z0, Z5
	VPCLMULQDQ $0x11, Z4, Z0, Z0
	VPCLMULQDQ $0x00, Z4, Z1, Z6
	VPCLMULQDQ $0x11, Z4, Z1, Z1
	VPCLMULQDQ $0x00, Z4, Z2, Z7
	VPCLMULQDQ $0x11, Z4, Z2, Z2
	VPCLMULQDQ $0x00, Z4, Z3, Z8
	VPCLMULQDQ $0x11, Z4, Z3, Z3
	VPTERNLOGQ $0x96, (SI), Z5, Z0
	VPTERNLOGQ $0x96, 64(SI), Z6, Z1
	VPTERNLOGQ $0x96, 128(SI), Z7, Z2
	VPTERNLOGQ $0x96, 192(SI), Z8, Z3

next:
	ADDQ $256, SI
	DECQ CX
	JNZ loop
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	VMOVDQU64 Z2, 128(DI)
	VMOVDQU64 Z3, 192(DI)
	VZEROUPPER
	RET

// x^(1024+32) and x^(1024-32) likewise, for 128 bytes.
DATA by128<>+0(SB)/8, $0x6992cea2
DATA by128<>+8(SB)/8, $0x0d3b6092
GLOBL by128<>(SB), RODATA|NOPTR, $16

// One step of a register of folds, with its data, and of each of the three instructions of sums.
#define STEP(fold, at, offset) \
	VPCLMULQDQ $0x00, Y4, fold, Y5; \
	VPCLMULQDQ $0x11, Y4, fold, fold; \
	VPXOR at(SI), Y5, Y5; \
	CRC32Q offset(R8), AX; \
	CRC32Q offset(R8)(BX*1), R10; \
	CRC32Q offset(R9), R11; \
	VPXOR Y5, fold, fold

// func mix(rest *[128]byte, states *[3]uint32, p *byte, n int)
TEXT ·mix(SB), NOSPLIT, $0-32
	MOVQ rest+0(FP), DI
	MOVQ states+8(FP), DX
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ CX, BX
	SHLQ $5, BX
	LEAQ (SI)(BX*4), R8
	LEAQ (R8)(BX*2), R9
	VBROADCASTI128 by128<>(SB), Y4
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	XORL AX, AX
	XORL R10, R10
	XORL R11, R11

mixed:
	STEP(Y0, 0, 0)
	STEP(Y1, 32, 8)
	STEP(Y2, 64, 16)
	STEP(Y3, 96, 24)
	ADDQ $128, SI
	ADDQ $32, R8
	ADDQ $32, R9
	DECQ CX
	JNZ mixed
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	MOVL AX, (DX)
	MOVL R10, 4(DX)
	MOVL R11, 8(DX)
	VZEROUPPER
	RET

// func multiplies() bool
TEXT ·multiplies(SB), NOSPLIT, $0-1
	MOVL $7, AX
	XORL CX, CX
	CPUID
	SHRL $10, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET
