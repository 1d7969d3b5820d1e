// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import DenseEncoding.Scratch

/*
 * The 16-bit formats round to nearest, ties to even, as torch does. tests/golden/wire pins them.
 *
 * The JIT does not vectorize loops with branches, so they use masks. It does not vectorize a change
 * of type either, so there is one loop for each type.
 */

/** Encoding of the upper half of each float32. */
private[comm] object Bf16 extends HalfEncoding("bf16") {
  override protected def round(scratch: Scratch, count: Int): Unit = {
    roundUpperHalves(scratch.bits, count)
    takeUpperHalves(scratch.bits, scratch.halves, count)
  }

  private def roundUpperHalves(bits: Array[Int], count: Int): Unit = {
    var i = 0
    while (i < count) {
      val value = bits(i)
      val ifNaN = (0x7f800000 - (value & 0x7fffffff)) >> 31
      // A NaN whose payload sits in the low bits would round to infinity.
      bits(i) = (value + ((0x7fff + ((value >>> 16) & 1)) & ~ifNaN)) | (0x400000 & ifNaN)
      i += 1
    }
  }

  private def takeUpperHalves(bits: Array[Int], halves: Array[Short], count: Int): Unit = {
    var i = 0
    while (i < count) {
      halves(i) = (bits(i) >>> 16).toShort
      i += 1
    }
  }

  override protected def widen(scratch: Scratch, count: Int): Unit =
    widen(scratch.halves, scratch.term, count)

  private def widen(halves: Array[Short], to: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      to(i) = java.lang.Float.intBitsToFloat(halves(i) << 16)
      i += 1
    }
  }
}

/**
 * Encoding as IEEE 754 binary16. Only -0.0 is rounded to -0.0: among gradients, it marks a
 * parameter that was not used.
 */
private[comm] object Fp16 extends HalfEncoding("fp16") {

  /** Bits of the float32 65,536, the least that is out of range. */
  private val TooLarge = 0x47800000

  /** Bits of the float32 2^-14, the least normal binary16. */
  private val LeastNormal = 0x38800000

  /**
   * Amount that a factor of 2^13 adds to the bits of a float32. Its mantissa has 13 bits more than
   * a binary16.
   */
  private val TimesMoreBits = 13 << 23

  /**
   * Round with the FPU. Adding a power of two that is 2^13 times the number's own power rounds the
   * number to eleven bits. Then the last bit of the sum is the last one that the half has.
   * Subnormal halves have the last bit of the least normal one.
   */
  override protected def round(scratch: Scratch, count: Int): Unit = {
    import scratch._
    findOffsets(bits, magnitudes, offsets, count)
    floatsOf(magnitudes, sum, count)
    floatsOf(offsets, term, count)
    DenseEncoding.add(sum, term, count)
    bitsOf(sum, magnitudes, count)
    combine(bits, magnitudes, offsets, count)
    takeLowerHalves(bits, halves, count)
  }

  private def findOffsets(
      bits: Array[Int],
      magnitudes: Array[Int],
      offsets: Array[Int],
      count: Int
  ): Unit = {
    var i = 0
    while (i < count) {
      val above = (bits(i) & 0x7fffffff) - TooLarge
      val magnitude = TooLarge + (above & (above >> 31))
      val power = (magnitude & 0x7f800000) - LeastNormal
      magnitudes(i) = magnitude
      offsets(i) = LeastNormal + TimesMoreBits + (power & ~(power >> 31))
      i += 1
    }
  }

  private def combine(bits: Array[Int], sums: Array[Int], offsets: Array[Int], count: Int): Unit = {
    var i = 0
    while (i < count) {
      val magnitude = bits(i) & 0x7fffffff
      val rounded = sums(i) - offsets(i) + ((offsets(i) - (LeastNormal + TimesMoreBits)) >>> 13)
      val ifNaN = (0x7f800000 - magnitude) >> 31
      val half = (rounded & ~ifNaN) | ((0x7e00 | ((magnitude >>> 13) & 0x3ff)) & ifNaN)
      val ifSigned = (-half | (magnitude - 1)) >> 31 // if the half is not 0, or the number was 0
      bits(i) = half | ((bits(i) >>> 16) & 0x8000 & ifSigned)
      i += 1
    }
  }

  private def takeLowerHalves(bits: Array[Int], halves: Array[Short], count: Int): Unit = {
    var i = 0
    while (i < count) {
      halves(i) = bits(i).toShort
      i += 1
    }
  }

  override protected def widen(scratch: Scratch, count: Int): Unit =
    widen(scratch.halves, widened, scratch.term, count)

  private def widen(
      halves: Array[Short],
      table: Array[Float],
      to: Array[Float],
      count: Int
  ): Unit = {
    var i = 0
    while (i < count) {
      to(i) = table(halves(i) & 0xffff)
      i += 1
    }
  }

  /** Table from the bits of a half to its float32. Its 256 KiB fit a second-level cache. */
  private lazy val widened: Array[Float] = Array.tabulate(1 << 16)(widenOne)

  private def widenOne(half: Int): Float = {
    val sign = (half & 0x8000) << 16
    val magnitude = half & 0x7fff
    if (magnitude >= 0x7c00)
      java.lang.Float.intBitsToFloat(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13))
    else if (magnitude >= 0x0400)
      java.lang.Float.intBitsToFloat(sign | ((magnitude << 13) + 0x38000000))
    else {
      val subnormal = magnitude * 5.9604645e-8f // 2^-24
      if (sign == 0) subnormal else -subnormal
    }
  }
}
