package sparkdl.comm.ps

import DenseEncoding.Scratch

/*
 * The 16-bit formats round to nearest, ties to even, as torch does. tests/golden/wire pins them.
 *
 * Loops have masks instead of branches, for with a branch the JIT does not vectorise them; and there are several of them, each
 * over one type, for it does not vectorise a change of type either.
 */

/** The upper half of a float32. */
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

  override protected def widen(scratch: Scratch, count: Int): Unit = widen(scratch.halves, scratch.term, count)

  private def widen(halves: Array[Short], to: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      to(i) = java.lang.Float.intBitsToFloat(halves(i) << 16)
      i += 1
    }
  }
}

/** IEEE 754 binary16; it rounds to -0.0 only what is -0.0: among gradients that says that a parameter was not used. */
private[comm] object Fp16 extends HalfEncoding("fp16") {

  /** 65,536 as float32, the least that is out of range. */
  private val TooLarge = 0x47800000

  /** 2^-14: the least that is normal. */
  private val LeastNormal = 0x38800000

  /** What a factor of 2^13 adds to the bits of a float32, which has 13 bits more of mantissa. */
  private val TimesMoreBits = 13 << 23

  /**
   * To add a power of two 2^13 times as large as the number's own has the FPU round to eleven bits: the last bit of the sum is
   * the last one that the half has. Subnormal halves have the last bit of the least normal one.
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

  private def findOffsets(bits: Array[Int], magnitudes: Array[Int], offsets: Array[Int], count: Int): Unit = {
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
      val ifSigned = (-half | (magnitude - 1)) >> 31 // it is not 0, or it was
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

  override protected def widen(scratch: Scratch, count: Int): Unit = widen(scratch.halves, widened, scratch.term, count)

  private def widen(halves: Array[Short], table: Array[Float], to: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      to(i) = table(halves(i) & 0xffff)
      i += 1
    }
  }

  /** By the bits of a half: 256 KiB, which a second-level cache has. */
  private lazy val widened: Array[Float] = Array.tabulate(1 << 16)(widenOne)

  private def widenOne(half: Int): Float = {
    val sign = (half & 0x8000) << 16
    val magnitude = half & 0x7fff
    if (magnitude >= 0x7c00) java.lang.Float.intBitsToFloat(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13))
    else if (magnitude >= 0x0400) java.lang.Float.intBitsToFloat(sign | ((magnitude << 13) + 0x38000000))
    else {
      val subnormal = magnitude * 5.9604645e-8f // 2^-24
      if (sign == 0) subnormal else -subnormal
    }
  }
}
