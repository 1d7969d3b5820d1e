package sparkdl.comm.ps

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Golden

class WireFormatSpec extends AnyFunSuite {
  private val values = Golden.floats("wire/values.f32")

  Seq(WireFormat.Bf16, WireFormat.Fp16).foreach { format =>
    test(s"${format.name} rounds as the golden values do") {
      val encoded = new Array[Short](values.length)
      format.encode(values, encoded, values.length)
      val expected = Golden.shorts(s"wire/values.${format.name}")
      values.indices.foreach(i => assert(encoded(i) === expected(i), s"for ${values(i)}"))
    }

    test(s"every ${format.name} value survives decoding and encoding") {
      val all = Array.tabulate(1 << 16)(_.toShort)
      val decoded = new Array[Float](all.length)
      val encoded = new Array[Short](all.length)
      format.decode(all, decoded, all.length)
      format.encode(decoded, encoded, all.length)
      all.indices.foreach { i =>
        if (decoded(i).isNaN) {
          format.decode(encoded, decoded, all.length)
          assert(decoded(i).isNaN)
        } else assert(encoded(i) === all(i), s"for ${decoded(i)}")
      }
    }
  }

  test("an unknown format is refused with the key and what there is") {
    val message = intercept[IllegalArgumentException](WireFormat("fp8")).getMessage
    assert(message.contains("spark.sparkdl.comm.ps.wire=fp8") && message.contains("bf16"))
  }
}
