package sparkdl.comm.ps

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Golden

class BlockEncodingSpec extends AnyFunSuite {
  private val values = Golden.floats("wire/values.f32")

  Seq(Bf16, Fp16).foreach { half =>
    test(s"${half.name} rounds as the golden values do") {
      val rounded = new Array[Short](values.length)
      half.round(values, rounded, values.length)
      val expected = Golden.shorts(s"wire/values.${half.name}")
      values.indices.foreach(i => assert(rounded(i) === expected(i), s"for ${values(i)}"))
    }

    test(s"every ${half.name} value survives widening and rounding") {
      val all = Array.tabulate(1 << 16)(_.toShort)
      val wide = new Array[Float](all.length)
      val rounded = new Array[Short](all.length)
      half.widen(all, wide, all.length)
      half.round(wide, rounded, all.length)
      all.indices.foreach { i =>
        if (wide(i).isNaN) {
          half.widen(rounded, wide, all.length)
          assert(wide(i).isNaN)
        } else assert(rounded(i) === all(i), s"for ${wide(i)}")
      }
    }
  }

  Seq(Fp32, Bf16, Fp16, NonZeros).foreach { encoding =>
    test(s"a ${encoding.name} block of several layers needs no more room than their blocks apart") {
      val random = new Random(8)
      (1 to 100).foreach { _ =>
        val layers = IndexedSeq.fill(1 + random.nextInt(9))(1L + random.nextInt(1 << (1 + random.nextInt(16))))
        val layout = new ShardLayout(layers, 1 + random.nextInt(4))
        for (
          server <- 0 until layout.world; room <- Seq[BlockShape => Long](encoding.maxBytes, encoding.stagingBytes)
        ) {
          val apart = layers.indices.map(layer => room(layout.block(server, layer, layer))).sum
          assert(room(layout.wholeBlock(server)) <= apart)
        }
        assert((0 until layout.world).map(layout.wholeBlock).forall(shape =>
          shape.count == 0 || encoding.maxBytes(shape) > 0
        ))
      }
    }

    test(s"what is encoded as ${encoding.name} is decoded, and added in the order of the blocks") {
      val layout = new ShardLayout(IndexedSeq(5000L, 17L, 20000L), 1)
      val shape = layout.wholeBlock(0)
      val count = layout.total.toInt
      val memory = Memory.allocate(count * 32L)
      def vector(number: Int)(range: ElementRange): Long = number * count * 4L + range.start * 4
      def read(number: Int): Array[Float] = {
        val elements = new Array[Float](count)
        memory.getFloats(number * count * 4L, elements, count)
        elements
      }
      // Exact in 16 bits, and half of them zero.
      val sent = Array.tabulate(count)(i => if (i % 2 == 0) 0f else (i % 64) / 8f)
      memory.putFloats(0, sent, count)
      val staging = 4L * count * 4
      var at = staging + encoding.stagingBytes(shape)
      encoding.encode(memory, vector(0), shape, staging).foreach { part =>
        memory.copy(part.offset, at, part.count)
        at += part.count
      }
      val begin = staging + encoding.stagingBytes(shape)
      val block = ByteRange(begin, at - begin)
      assert(encoding.canHave(shape, block.count) && block.count <= encoding.maxBytes(shape))
      encoding.decode(memory, block, shape, vector(1))
      assert(read(1) === sent)
      val own = Array.fill(count)(1e8f)
      memory.putFloats(2L * count * 4, own, count)
      encoding.addInto(memory, Seq(block, block), shape, vector(2))
      assert(read(2) === sent.map(value => 1e8f + value + value))
    }
  }

  test("an unknown encoding is refused with the key and what there is") {
    val message = intercept[IllegalArgumentException](BlockEncoding("fp8")).getMessage
    assert(message.contains("spark.sparkdl.comm.ps.wire=fp8") && message.contains("bf16"))
  }
}
