#include "textflag.h"
#include "go_asm.h"

DATA rotate16<>+0(SB)/8, $0x0504070601000302
DATA rotate16<>+8(SB)/8, $0x0d0c0f0e09080b0a
GLOBL rotate16<>(SB), RODATA|NOPTR, $16
DATA rotate8<>+0(SB)/8, $0x0407060500030201
DATA rotate8<>+8(SB)/8, $0x0c0f0e0d080b0a09
GLOBL rotate8<>(SB), RODATA|NOPTR, $16

// Lane i of X0..X3 is one column of the state; X4 is scratch, X5 and X6 rotate bytes.
#define ROTATE(x, left, right) \
	VPSLLD $left, x, X4  \
	VPSRLD $right, x, x  \
	VPOR   X4, x, x

#define MIX(message1, message2) \
	VPADDD message1, X0, X0 \
	VPADDD X1, X0, X0       \
	VPXOR  X0, X3, X3       \
	VPSHUFB X5, X3, X3      \
	VPADDD X3, X2, X2       \
	VPXOR  X2, X1, X1       \
	ROTATE(X1, 20, 12)      \
	VPADDD message2, X0, X0 \
	VPADDD X1, X0, X0       \
	VPXOR  X0, X3, X3       \
	VPSHUFB X6, X3, X3      \
	VPADDD X3, X2, X2       \
	VPXOR  X2, X1, X1       \
	ROTATE(X1, 25, 7)

// MIX512 is MIX with the rotations that AVX-512 has.
#define MIX512(message1, message2) \
	VPADDD message1, X0, X0 \
	VPADDD X1, X0, X0       \
	VPXOR  X0, X3, X3       \
	VPRORD $16, X3, X3      \
	VPADDD X3, X2, X2       \
	VPXOR  X2, X1, X1       \
	VPRORD $12, X1, X1      \
	VPADDD message2, X0, X0 \
	VPADDD X1, X0, X0       \
	VPXOR  X0, X3, X3       \
	VPRORD $8, X3, X3       \
	VPADDD X3, X2, X2       \
	VPXOR  X2, X1, X1       \
	VPRORD $7, X1, X1

// SCHEDULE puts the message words of one round on the stack, in the order in which ROUND adds them.
// It picks each word from the lower and from the upper eight words of the block. upper tells which
// of the two counts.
#define SCHEDULE(round) \
	VMOVDQU    (round*64)(R8), Y10      \
	VMOVDQU    (round*64+32)(R8), Y11   \
	VPERMD     Y8, Y10, Y12             \
	VPERMD     Y9, Y10, Y13             \
	VPERMD     Y8, Y11, Y14             \
	VPERMD     Y9, Y11, Y15             \
	VMOVDQU    (round*64)(R9), Y10      \
	VMOVDQU    (round*64+32)(R9), Y11   \
	VPBLENDVB  Y10, Y13, Y12, Y12       \
	VPBLENDVB  Y11, Y15, Y14, Y14       \
	VMOVDQU    Y12, (round*64)(SP)      \
	VMOVDQU    Y14, (round*64+32)(SP)

// SCHEDULE512 is SCHEDULE with one instruction that picks from both halves.
#define SCHEDULE512(round) \
	VMOVDQU  (round*64)(R8), Y10      \
	VMOVDQU  (round*64+32)(R8), Y11   \
	VPERMI2D Y9, Y8, Y10              \
	VPERMI2D Y9, Y8, Y11              \
	VMOVDQU  Y10, (round*64)(SP)      \
	VMOVDQU  Y11, (round*64+32)(SP)

// The rows turn so that the diagonals stand as columns, and back. X1 does not turn, because it is
// ready last.
#define ROUND(MIXED, round) \
	MIXED((round*64)(SP), (round*64+16)(SP))    \
	VPSHUFD $0x93, X0, X0                     \
	VPSHUFD $0x4e, X3, X3                     \
	VPSHUFD $0x39, X2, X2                     \
	MIXED((round*64+32)(SP), (round*64+48)(SP)) \
	VPSHUFD $0x39, X0, X0                     \
	VPSHUFD $0x4e, X3, X3                     \
	VPSHUFD $0x93, X2, X2

// func hashAVX2(digests, parent *words, text unsafe.Pointer, blocks int, s *schedule)
//
// DX is the block to read, DI the place of its digest, CX the number of blocks left. X0 and X1
// carry the digest to the next block, as the upper half of its state. BX, R8 and R9 are the fields
// low, order and upper of schedule, which newSchedule fills. Y8 and Y9 hold the block, and Y10 to
// Y15 are scratch.
TEXT ·hashAVX2(SB), NOSPLIT, $448-40
	MOVQ digests+0(FP), DI
	MOVQ parent+8(FP), SI
	MOVQ text+16(FP), DX
	MOVQ blocks+24(FP), CX
	MOVQ s+32(FP), BX
	LEAQ schedule_order(BX), R8
	LEAQ schedule_upper(BX), R9
	VMOVDQU rotate16<>(SB), X5
	VMOVDQU rotate8<>(SB), X6
	VMOVDQU (SI), X0
	VMOVDQU 16(SI), X1

block:
	VMOVDQU (DX), Y8
	VMOVDQU 32(DX), Y9
	SCHEDULE(0)
	SCHEDULE(1)
	SCHEDULE(2)
	SCHEDULE(3)
	SCHEDULE(4)
	SCHEDULE(5)
	SCHEDULE(6)
	VMOVDQU (BX), X2
	VMOVDQU 16(BX), X3
	ROUND(MIX, 0)
	ROUND(MIX, 1)
	ROUND(MIX, 2)
	ROUND(MIX, 3)
	ROUND(MIX, 4)
	ROUND(MIX, 5)
	ROUND(MIX, 6)
	VPXOR X2, X0, X0
	VPXOR X3, X1, X1
	VMOVDQU X0, (DI)
	VMOVDQU X1, 16(DI)
	ADDQ $32, DI
	ADDQ $64, DX
	DECQ CX
	JNZ  block
	VZEROUPPER
	RET

// func hashAVX512(digests, parent *words, text unsafe.Pointer, blocks int, s *schedule)
//
// It has hashAVX2's registers, and needs neither X4 to X6 nor R9.
TEXT ·hashAVX512(SB), NOSPLIT, $448-40
	MOVQ digests+0(FP), DI
	MOVQ parent+8(FP), SI
	MOVQ text+16(FP), DX
	MOVQ blocks+24(FP), CX
	MOVQ s+32(FP), BX
	LEAQ schedule_order(BX), R8
	VMOVDQU (SI), X0
	VMOVDQU 16(SI), X1

block512:
	VMOVDQU (DX), Y8
	VMOVDQU 32(DX), Y9
	SCHEDULE512(0)
	SCHEDULE512(1)
	SCHEDULE512(2)
	SCHEDULE512(3)
	SCHEDULE512(4)
	SCHEDULE512(5)
	SCHEDULE512(6)
	VMOVDQU (BX), X2
	VMOVDQU 16(BX), X3
	ROUND(MIX512, 0)
	ROUND(MIX512, 1)
	ROUND(MIX512, 2)
	ROUND(MIX512, 3)
	ROUND(MIX512, 4)
	ROUND(MIX512, 5)
	ROUND(MIX512, 6)
	VPXOR X2, X0, X0
	VPXOR X3, X1, X1
	VMOVDQU X0, (DI)
	VMOVDQU X1, 16(DI)
	ADDQ $32, DI
	ADDQ $64, DX
	DECQ CX
	JNZ  block512
	VZEROUPPER
	RET
