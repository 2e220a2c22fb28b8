/*
 * Constants of kn_expf and of its vector form (vec_math.h); both run the same operations.
 *
 * x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q of degree 4 through Chebyshev nodes (relative
 * error of the polynomial 0.18 * 2^-24). Adding EXP_ROUND rounds to an integer, which then stands in the low
 * bits of the sum. Below EXP_LO the result is 0, above EXP_HI it is infinite.
 */
#ifndef ISOTHERM_KERNELS_CPU_SIMD_EXP_CONSTANTS_H
#define ISOTHERM_KERNELS_CPU_SIMD_EXP_CONSTANTS_H

#define EXP_LO     (-104.0f)
#define EXP_HI     89.0f
#define EXP_LOG2E  0x1.715476p0f
#define EXP_ROUND  0x1.8p23f
#define EXP_LN2_HI 0x1.62e43p-1f
#define EXP_LN2_LO (-0x1.05c61p-29f)
#define EXP_Q0     0x1p-1f
#define EXP_Q1     0x1.5554dcp-3f
#define EXP_Q2     0x1.55551ap-5f
#define EXP_Q3     0x1.120b6cp-7f
#define EXP_Q4     0x1.6d1106p-10f

#endif
