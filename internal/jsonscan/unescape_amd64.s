#include "textflag.h"

#define BYTES(name, b) \
	DATA name<>+0(SB)/8, $b \
	GLOBL name<>(SB), RODATA|NOPTR, $8

BYTES(quote, 0x2222222222222222)
BYTES(backslash, 0x5c5c5c5c5c5c5c5c)
BYTES(control, 0x1f1f1f1f1f1f1f1f)
BYTES(nibble, 0x0f0f0f0f0f0f0f0f)
BYTES(third, 0x6060606060606060)  // 0xe0 - 0x80: a lead byte at least as large asks for a third byte
BYTES(fourth, 0x7070707070707070) // 0xf0 - 0x80
BYTES(sign, 0x8080808080808080)

// Three tables of 16 entries check UTF-8 (Keiser and Lemire, "Validating UTF-8 in less than one
// instruction per byte", 2021). Their indexes are the high half of the previous byte, its low half,
// and the high half of the byte. An entry has a bit for each mistake that its half byte allows. A
// mistake that all three entries allow has happened:
//
//	0x01  a lead byte not followed by enough others       0x10  a surrogate, U+D800 to U+DFFF
//	0x02  ASCII followed by a continuation byte           0x20  two bytes where one would do
//	0x04  three bytes where two would do                  0x40  four where three would do, or above U+10FFFF
//	0x08  above U+10FFFF                                  0x80  two continuation bytes in a row
//
// Bit 0x80 is right in the third and fourth byte of a character, and wrong in every other byte.
// MISTAKES finds these bytes by the bytes two and three places before.
DATA before<>+0(SB)/8, $0x0202020202020202
DATA before<>+8(SB)/8, $0x4915012180808080
GLOBL before<>(SB), RODATA|NOPTR, $16
DATA beforeLow<>+0(SB)/8, $0xcbcbcb8b8383a3e7
DATA beforeLow<>+8(SB)/8, $0xcbcbdbcbcbcbcbcb
GLOBL beforeLow<>(SB), RODATA|NOPTR, $16
DATA here<>+0(SB)/8, $0x0101010101010101
DATA here<>+8(SB)/8, $0x01010101babaaee6
GLOBL here<>(SB), RODATA|NOPTR, $16

// MISTAKES adds the mistakes of the bytes in Y0 to Y5. The bytes in Y4 come before them.
#define MISTAKES \
	VPERM2I128 $0x21, Y0, Y4, Y6 \
	VPALIGNR   $15, Y6, Y0, Y7   \
	VPSRLW     $4, Y7, Y8        \
	VPAND      Y9, Y8, Y8        \
	VPSHUFB    Y8, Y10, Y8       \
	VPAND      Y9, Y7, Y7        \
	VPSHUFB    Y7, Y11, Y7       \
	VPAND      Y7, Y8, Y8        \
	VPSRLW     $4, Y0, Y7        \
	VPAND      Y9, Y7, Y7        \
	VPSHUFB    Y7, Y12, Y7       \
	VPAND      Y7, Y8, Y8        \
	VPALIGNR   $14, Y6, Y0, Y7   \
	VPSUBUSB   Y13, Y7, Y7       \
	VPALIGNR   $13, Y6, Y0, Y6   \
	VPSUBUSB   Y14, Y6, Y6       \
	VPOR       Y6, Y7, Y7        \
	VPAND      Y15, Y7, Y7       \
	VPXOR      Y7, Y8, Y8        \
	VPOR       Y8, Y5, Y5

// func unescapeAVX2(dst, src unsafe.Pointer, n int, simple *[256]byte) (wrote, read int,
//     valid bool)
//
// SI reads and DI writes; R9 and R8 are their beginnings. DX is the last address with 32 bytes to
// read. BX is simple. Y0 holds the bytes at SI, and Y4 the bytes before them, or zero after an
// escape, which is ASCII. Y5 holds the mistakes so far. Y1 to Y3 and Y9 to Y15 are the constants,
// and Y6 to Y8 are scratch.
TEXT ·unescapeAVX2(SB), NOSPLIT, $0-49
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	MOVQ simple+24(FP), BX
	MOVQ DI, R8
	MOVQ SI, R9
	LEAQ -32(SI)(DX*1), DX
	VPBROADCASTQ quote<>(SB), Y1
	VPBROADCASTQ backslash<>(SB), Y2
	VPBROADCASTQ control<>(SB), Y3
	VPBROADCASTQ nibble<>(SB), Y9
	VBROADCASTI128 before<>(SB), Y10
	VBROADCASTI128 beforeLow<>(SB), Y11
	VBROADCASTI128 here<>(SB), Y12
	VPBROADCASTQ third<>(SB), Y13
	VPBROADCASTQ fourth<>(SB), Y14
	VPBROADCASTQ sign<>(SB), Y15
	VPXOR Y5, Y5, Y5
	VPXOR Y4, Y4, Y4

run:
	CMPQ SI, DX
	JA   end
	VMOVDQU   (SI), Y0
	VMOVDQU   Y0, (DI)
	VPCMPEQB  Y0, Y1, Y6
	VPCMPEQB  Y0, Y2, Y7
	VPMINUB   Y0, Y3, Y8
	VPCMPEQB  Y0, Y8, Y8
	VPOR      Y6, Y7, Y6
	VPOR      Y6, Y8, Y6
	VPMOVMSKB Y6, AX
	MISTAKES
	TESTL     AX, AX
	JNZ       special
	VMOVDQA   Y0, Y4
	ADDQ      $32, SI
	ADDQ      $32, DI
	JMP       run

special:
	TZCNTL  AX, AX
	ADDQ    AX, SI
	ADDQ    AX, DI
	CMPQ    SI, DX // the byte after a backslash has to be in reach
	JA      end
	MOVBLZX (SI), AX
	CMPB    AX, $0x5c
	JNE     end
	MOVBLZX 1(SI), AX
	MOVBLZX (BX)(AX*1), AX
	TESTB   AX, AX
	JZ      end
	MOVB    AX, (DI)
	INCQ    DI
	ADDQ    $2, SI
	VPXOR   Y4, Y4, Y4
	JMP     run

end:
	VPTEST Y5, Y5
	SETEQ  valid+48(FP)
	SUBQ   R8, DI
	SUBQ   R9, SI
	MOVQ   DI, wrote+32(FP)
	MOVQ   SI, read+40(FP)
	VZEROUPPER
	RET
