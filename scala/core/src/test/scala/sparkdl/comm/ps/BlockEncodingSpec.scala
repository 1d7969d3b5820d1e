// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{CommException, Golden}

class BlockEncodingSpec extends AnyFunSuite {
  private val values = Golden.floats("wire/values.f32")

  private def rounded(half: HalfEncoding, values: Array[Float]): Array[Short] = {
    val (shape, memory) = oneLayer(values.length)
    memory.putFloats(0, values, values.length)
    val block = half.encode(memory, _.start * 4, shape, values.length * 4L).head
    val halves = new Array[Short](values.length)
    memory.getShorts(block.offset, halves, halves.length)
    halves
  }

  private def widened(half: HalfEncoding, halves: Array[Short]): Array[Float] = {
    val (shape, memory) = oneLayer(halves.length)
    memory.putShorts(0, halves, halves.length)
    half.decode(memory, 0, shape.ranges, halves.length * 4L + _.start * 4)
    val values = new Array[Float](halves.length)
    memory.getFloats(halves.length * 4L, values, values.length)
    values
  }

  Seq(Bf16, Fp16).foreach { half =>
    test(s"${half.name} rounds as the golden values") {
      val expected = Golden.shorts(s"wire/values.${half.name}")
      rounded(half, values).zip(expected).zip(values).foreach { case ((found, right), value) =>
        assert(found === right, s"for $value")
      }
    }

    test(s"every ${half.name} value survives widening and rounding") {
      val all = Array.tabulate(1 << 16)(_.toShort)
      val wide = widened(half, all)
      val again = rounded(half, wide)
      val wideAgain = widened(half, again)
      all.indices.foreach { i =>
        if (wide(i).isNaN) assert(wideAgain(i).isNaN)
        else assert(again(i) === all(i), s"for ${wide(i)}")
      }
    }

    test(s"${half.name} rounds every number to the nearest value, and ties to even") {
      val finite =
        widened(half, Array.tabulate(1 << 15)(_.toShort)).takeWhile(!_.isInfinite).map(_.toDouble)
      // Infinity counts as the next finite number in rounding.
      val steps = finite :+ (2 * finite.last - finite(finite.length - 2))
      val random = new Random(11)
      val drawn =
        Array.fill(100000)(java.lang.Float.intBitsToFloat(random.nextInt())).filterNot(_.isNaN)
      val ties = finite.indices.map(i => ((steps(i) + steps(i + 1)) / 2).toFloat)
      val cases = drawn ++ ties ++ ties.map(Math.nextDown) ++ ties.map(Math.nextUp)
      cases.zip(rounded(half, cases)).foreach { case (value, found) =>
        val magnitude = math.min(math.abs(value.toDouble), steps.last)
        val at = java.util.Arrays.binarySearch(steps, magnitude)
        val below = if (at < 0) -at - 2 else at
        val above = math.min(below + 1, steps.length - 1)
        val (down, up) = (magnitude - steps(below), steps(above) - magnitude)
        val right = if (down < up || down == up && below % 2 == 0) below else above
        assert((found & 0x7fff) === right, s"for $value")
        assert((found < 0) === (value < 0 && right != 0 || java.lang.Float.floatToRawIntBits(
          value
        ) == Int.MinValue))
      }
    }

    test(s"a ${half.name} block is decoded in parts to the same values as at once") {
      val layout = new ShardLayout(IndexedSeq(5000L, 17L, 20000L, 3L), 2)
      val shape = layout.wholeBlock(1)
      val count = layout.total.toInt
      val memory = Segment.allocate(count * 16L)
      memory.putFloats(0, Array.tabulate(count)(_ / 8f), count)
      val staging = count * 4L
      half.encode(memory, _.start * 4, shape, staging)
      def read(vector: Int): Array[Float] = {
        val elements = new Array[Float](count)
        memory.getFloats(vector * count * 4L, elements, count)
        elements
      }
      half.decode(memory, staging, shape.ranges, 2L * count * 4 + _.start * 4)
      val random = new Random(12)
      val cuts =
        (Seq(0L, shape.count) ++ Seq.fill(9)((random.nextDouble() * shape.count).toLong)).sorted
      random.shuffle(cuts.zip(cuts.tail)).foreach { case (from, until) =>
        half.decode(
          memory,
          staging + from * 2,
          shape.part(from, until),
          3L * count * 4 + _.start * 4
        )
      }
      assert(read(3) === read(2) && read(3).exists(_ != 0))
    }
  }

  Seq(Fp32, Bf16, Fp16, SparseEncoding).foreach { encoding =>
    test(
      s"a ${encoding.name} block of several layers needs no more room than one block per layer"
    ) {
      val random = new Random(8)
      (1 to 100).foreach { _ =>
        val layers =
          IndexedSeq.fill(1 + random.nextInt(9))(1L + random.nextInt(1 << (1 + random.nextInt(16))))
        val layout = new ShardLayout(layers, 1 + random.nextInt(4))
        for (
          server <- 0 until layout.world;
          room <- Seq[BlockShape => Long](encoding.maxBytes, encoding.stagingBytes)
        ) {
          val apart = layers.indices.map(layer => room(layout.block(server, layer, layer))).sum
          assert(room(layout.wholeBlock(server)) <= apart)
        }
        assert((0 until layout.world).map(layout.wholeBlock).forall(shape =>
          shape.count == 0 || encoding.maxBytes(shape) > 0
        ))
      }
    }

    test(s"${encoding.name} blocks are added in their order") {
      val layout = new ShardLayout(IndexedSeq(5000L, 17L, 20000L), 1)
      val shape = layout.wholeBlock(0)
      val count = layout.total.toInt
      val memory = Segment.allocate(count * 32L)
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
      assert(encoding.isValidLength(shape, block.count) && block.count <= encoding.maxBytes(shape))
      encoding.addInto(memory, Nil, Seq(block), shape, vector(1))
      assert(read(1) === sent)
      val own = Array.fill(count)(1e8f)
      memory.putFloats(2L * count * 4, own, count)
      encoding.addInto(memory, Nil, Seq(block, block), shape, vector(2))
      assert(read(2) === sent.map(value => 1e8f + value + value))
      memory.putFloats(2L * count * 4, own, count)
      encoding.addInto(memory, Seq(block, block), Seq(block), shape, vector(2))
      assert(read(2) === sent.map(value => value + value + 1e8f + value))
    }
  }

  /** Return the shape of one layer on one server, and memory for it. */
  private def oneLayer(count: Int): (BlockShape, Segment) =
    (new ShardLayout(IndexedSeq(count.toLong), 1).wholeBlock(0), Segment.allocate(count * 32L))

  private def encoded(
      memory: Segment,
      shape: BlockShape,
      elements: Array[Float],
      at: Long
  ): ByteRange = {
    memory.putFloats(0, elements, elements.length)
    SparseEncoding.encode(memory, _.start * 4, shape, at).head
  }

  /** Decode a block by adding it to -0.0, which keeps the block's bits. */
  private def ofSparse(memory: Segment, block: ByteRange, shape: BlockShape): Array[Float] = {
    val elements = Array.fill(shape.count.toInt)(-0.0f)
    memory.putFloats(shape.count * 4, elements, elements.length)
    SparseEncoding.addInto(memory, Nil, Seq(block), shape, shape.count * 4 + _.start * 4)
    memory.getFloats(shape.count * 4, elements, elements.length)
    elements
  }

  private def bits(values: Array[Float]): Seq[Int] =
    values.toSeq.map(java.lang.Float.floatToRawIntBits)

  test("a sparse block equals the golden one") {
    val elements = Golden.floats("wire/sparse.f32")
    val (shape, memory) = oneLayer(elements.length)
    val block = encoded(memory, shape, elements, elements.length * 8L)
    val bytes = new Array[Byte](block.count.toInt)
    memory.slices(block.offset, block.count).head.get(bytes)
    assert(bytes.toSeq === Golden.bytes("wire/sparse.bin").toSeq)
    assert(bits(ofSparse(memory, block, shape)) === bits(elements))
  }

  test("mostly non-zero elements are sent densely, four bytes longer") {
    val elements = Array.tabulate(9000)(i => if (i % 10 == 0) -0.0f else i.toFloat)
    val (shape, memory) = oneLayer(elements.length)
    val block = encoded(memory, shape, elements, 9000 * 8L)
    assert(block.count === 4 + 9000 * 4)
    assert(bits(ofSparse(memory, block, shape)) === bits(elements))
  }

  test("in sums of sparse blocks only unused elements are -0.0, as in dense sums") {
    val random = new Random(3)
    (1 to 200).foreach { _ =>
      val count = 1 + random.nextInt(6000)
      val (shape, memory) = oneLayer(count)
      val each = Seq.fill(3) {
        val cuts = Seq.fill(random.nextInt(6))(random.nextInt(count)).sorted :+ count
        val used = Seq.fill(cuts.size)(random.nextBoolean())
        Array.tabulate(count) { i =>
          if (!used(cuts.indexWhere(_ > i))) -0.0f
          else if (random.nextInt(20) == 0) random.nextInt(9) - 4f else 0f
        }
      }
      var at = count * 8L
      val blocks = each.tail.map { elements =>
        val block = encoded(memory, shape, elements, at)
        at += (block.count + 63) / 64 * 64
        block
      }
      memory.putFloats(count * 4L, each.head, count)
      SparseEncoding.addInto(
        memory,
        blocks.take(1),
        blocks.drop(1),
        shape,
        count * 4L + _.start * 4
      )
      val sum = new Array[Float](count)
      memory.getFloats(count * 4L, sum, count)
      assert(bits(sum) === bits(Array.tabulate(count)(i =>
        Seq(1, 0, 2).map(each(_)(i)).reduce(_ + _)
      )))
    }
  }

  test("a malformed sparse block is refused") {
    val elements = Array.tabulate(100000)(i => if (i % 1000 == 7) 1f else if (i < 5) -0.0f else 0f)
    val (shape, memory) = oneLayer(elements.length)
    val at = elements.length * 8L
    val whole = encoded(memory, shape, elements, at)
    val golden = new Array[Byte](whole.count.toInt)
    memory.slices(at, whole.count).head.get(golden)
    def refused(change: java.nio.ByteBuffer => Unit, count: Long = whole.count): Unit = {
      val changed = java.nio.ByteBuffer.wrap(golden.clone()).order(java.nio.ByteOrder.LITTLE_ENDIAN)
      change(changed)
      memory.put(at, changed.rewind())
      val error = intercept[CommException](
        SparseEncoding.addInto(
          memory,
          Nil,
          Seq(ByteRange(at, count)),
          shape,
          elements.length * 4L + _.start * 4
        )
      )
      assert(error.kind === CommException.Protocol)
    }
    refused(_ => (), whole.count - 2)
    refused(_.putInt(0, 99)) // number of entries
    refused(_.putInt(0, -2))
    refused(_.putInt(0, -1)) // dense
    refused(_.putInt(4, 1 << 30)) // number of runs
    refused(_.putInt(4, -1))
    refused(_.putInt(8, 99999)) // the first run
    refused(_.putInt(12, 0))
    refused(_.putInt(16, 65)) // entries in the first 65,536 elements
    val positions = whole.count.toInt - 2 * 100
    refused(_.putShort(positions, 5000.toShort)) // after the next one
    refused(_.putShort(positions + 2 * 99, -1.toShort)) // after the last element
  }

  test("the expected bytes of a block follow from its share of non-zero elements") {
    assert(Seq(Fp32, Bf16, Fp16).map(_.expectedBytes(1000, 0.01)) === Seq(4000, 2000, 2000))
    assert(Seq(0.01, 0.6, 0.7, 1).map(SparseEncoding.expectedBytes(1000, _)) === Seq(
      61,
      3601,
      4001,
      4001
    ))
    assert(SparseEncoding.expectedBytes(3, 0.25) === 1 + 4, "4.5 is rounded to even")
  }

  test("an unknown encoding is refused with the key and the known ones") {
    val message = intercept[IllegalArgumentException](BlockEncoding("fp8")).getMessage
    assert(message.contains("spark.sparkdl.comm.ps.wire=fp8") && message.contains("bf16"))
  }
}
