package sparkdl.comm.ps

/*
 * The 16-bit formats round to nearest, ties to even, as torch does. tests/golden/wire pins them.
 */

/** The upper half of a float32. */
private[comm] object Bf16 extends HalfEncoding("bf16") {
  override def round(from: Array[Float], to: Array[Short], count: Int): Unit = {
    var i = 0
    while (i < count) {
      val bits = java.lang.Float.floatToRawIntBits(from(i))
      // A NaN whose payload sits in the low bits would round to infinity.
      val rounded =
        if ((bits & 0x7fffffff) > 0x7f800000) (bits >>> 16) | 0x40
        else (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16
      to(i) = rounded.toShort
      i += 1
    }
  }

  override def widen(from: Array[Short], to: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      to(i) = java.lang.Float.intBitsToFloat(from(i) << 16)
      i += 1
    }
  }
}

/** IEEE 754 binary16; it rounds to -0.0 only what is -0.0: among gradients that says that a parameter was not used. */
private[comm] object Fp16 extends HalfEncoding("fp16") {
  override def round(from: Array[Float], to: Array[Short], count: Int): Unit = {
    var i = 0
    while (i < count) {
      to(i) = roundOne(from(i))
      i += 1
    }
  }

  override def widen(from: Array[Short], to: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      to(i) = widenOne(from(i))
      i += 1
    }
  }

  private def roundOne(value: Float): Short = {
    val bits = java.lang.Float.floatToRawIntBits(value)
    val sign = (bits >>> 16) & 0x8000
    val magnitude = bits & 0x7fffffff
    val half =
      if (magnitude > 0x7f800000) 0x7e00 | ((magnitude >>> 13) & 0x3ff)
      else if (magnitude >= 0x477ff000) 0x7c00 // rounds to 65536 or more: infinity
      else if (magnitude >= 0x38800000) {
        val rebiased = magnitude - 0x38000000
        (rebiased + 0xfff + ((rebiased >>> 13) & 1)) >>> 13
      } else if (magnitude < 0x33000000) 0 // below half of the smallest subnormal
      else {
        // Adding 0.5 lines the subnormal's last bit up with the last bit of a float32 mantissa: the FPU rounds.
        val shifted = java.lang.Float.intBitsToFloat(magnitude) + 0.5f
        java.lang.Float.floatToRawIntBits(shifted) - 0x3f000000
      }
    if (half == 0 && magnitude != 0) 0 else (sign | half).toShort
  }

  private def widenOne(half: Short): Float = {
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
