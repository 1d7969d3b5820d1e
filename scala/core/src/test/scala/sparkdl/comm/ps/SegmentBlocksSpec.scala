// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.{Batch, Traffic}

class SegmentBlocksSpec extends AnyFunSuite {
  private val layers = IndexedSeq(5000L, 17L, 200000L, 3L)
  private val cuts =
    Seq(Seq(Batch(1, 4)), Seq(Batch(3, 4), Batch(1, 2)), (1 to 4).map(layer => Batch(layer, layer)))

  cuts.foreach { cut =>
    test(
      "reduce adds all ranks' gradients in rank order, with its own in their place, and changes" +
        s" nothing else: ${cut.mkString}"
    ) {
      val random = new Random(5)
      val layout = new ShardLayout(layers, 3)
      val map = new SegmentMap(layout, 2, Encodings(Fp32))
      val segment = Segment.allocate(map.bytes)
      val own = Array.fill(layout.total.toInt)(random.nextGaussian().toFloat)
      segment.putFloats(map.gradients, own, own.length)
      val expected = own.clone
      val blocks = new SegmentBlocks(segment, map)
      cut.map(map.slice(2, _)).foreach { slice =>
        val arrived = Seq(0, 1).map { peer =>
          val values = Array.fill(slice.shape.count.toInt)(random.nextGaussian().toFloat)
          segment.putFloats(map.inbox(peer, slice), values, values.length)
          values
        }
        slice.shape.ranges.flatMap(range => range.start until range.end).zipWithIndex.foreach {
          case (element, at) =>
            expected(element.toInt) = arrived(0)(at) + arrived(1)(at) + own(element.toInt)
        }
        blocks.reduce(slice, Seq(0, 1).map(peer => (peer, slice.shape.count * 4)))
      }
      val result = new Array[Float](own.length)
      segment.getFloats(map.gradients, result, result.length)
      assert(result === expected)
    }
  }

  for (encoding <- Seq(Bf16, Fp16); cut <- cuts)
    test(
      s"a block in ${encoding.name} is decoded to the values that its owner computes with:" +
        s" ${cut.mkString}"
    ) {
      val random = new Random(6)
      val layout = new ShardLayout(layers, 2)
      val owner = new SegmentMap(layout, 0, Encodings(encoding))
      val reader = new SegmentMap(layout, 1, Encodings(encoding))
      val (owned, read) = (Segment.allocate(owner.bytes), Segment.allocate(reader.bytes))
      owner.shard.foreach { range =>
        val exact = Array.fill(range.count.toInt)(random.nextGaussian().toFloat)
        owned.putFloats(owner.master(range), exact, exact.length)
      }
      val sending = new SegmentBlocks(owned, owner)
      val receiving = new SegmentBlocks(read, reader)
      cut.map(owner.slice(0, _)).foreach { slice =>
        val IndexedSeq(target) = receiving.parametersTarget(slice, 0)
        val end = sending.encodeParameters(slice, 0).foldLeft(target.offset) { (at, part) =>
          val bytes = part.remaining
          read.put(at, part)
          at + bytes
        }
        val bytes = end - target.offset
        // The third byte belongs to the second element, which is complete with the fourth byte.
        Seq(0L, 3L, bytes / 2, bytes).sliding(2).foreach { case Seq(from, until) =>
          receiving.placeParameters(slice, 0, from, until)
        }
      }
      owner.shard.foreach { range =>
        val exact, mine, theirs = new Array[Float](range.count.toInt)
        owned.getFloats(owner.master(range), exact, exact.length)
        owned.getFloats(owner.parameters(0) + range.start * 4, mine, mine.length)
        read.getFloats(reader.parameters(0) + range.start * 4, theirs, theirs.length)
        assert(mine === theirs)
        assert(mine.zip(exact).forall { case (decoded, value) =>
          math.abs(decoded - value) <= math.abs(value) / 256
        })
        assert(mine.exists(_ != 0))
      }
    }

  test("nothing in a segment overlaps, for any buckets") {
    val all =
      Seq(Encodings(Fp32), Encodings(Bf16), Encodings(Fp32, SparseEncoding), Encodings(Bf16, Fp32))
    for (encodings <- all; pullsAhead <- Seq(false, true); cut <- cuts) {
      val map = new SegmentMap(new ShardLayout(layers, 4), 2, encodings, pullsAhead)
      val Encodings(parameters, gradients) = encodings
      val own = cut.map(map.slice(2, _))
      val others = for (peer <- Seq(0, 1, 3); batch <- cut) yield map.slice(peer, batch)
      val parts = (map.parameterBuffers :+ map.gradients).map((_, map.layout.total * 4)) ++ Seq((
        map.summed,
        8L
      )) ++
        own.map(slice => (map.shardStaging(slice), parameters.stagingBytes(slice.shape))) ++
        (for (peer <- Seq(0, 1, 3); slice <- own)
          yield (map.inbox(peer, slice), gradients.maxBytes(slice.shape))) ++
        others.map(slice => (map.gradientStaging(slice), gradients.stagingBytes(slice.shape))) ++
        (if (parameters.inPlace) Nil
         else others.map(slice => (map.pullbox(slice), parameters.maxBytes(slice.shape)))) ++
        (if (parameters.inPlace && !pullsAhead) Nil
         else map.shard.map(range => (map.master(range), range.count * 4)))
      val sorted = parts.filter(_._2 > 0).sortBy(_._1)
      sorted.zip(sorted.tail).foreach { case ((begin, bytes), (next, _)) =>
        assert(begin + bytes <= next)
      }
      assert(sorted.last._1 + sorted.last._2 <= map.bytes)
    }
  }

  test("traffic counts compressed layers, and the inline threshold of all servers") {
    val layout = new ShardLayout(IndexedSeq(1000L, 40L), 3)
    val map = new SegmentMap(layout, 0, Encodings(Bf16, SparseEncoding), pullsAhead = true)
    val expected =
      Traffic(3, IndexedSeq(2000, 80), IndexedSeq(61, 3), noticeBytes = 300, pullsAhead = true)
    assert(map.traffic(inlineThreshold = 100, density = 0.01) === expected)
  }
}
