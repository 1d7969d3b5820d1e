package sparkdl.comm.ps

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.Batch

class ShardMathSpec extends AnyFunSuite {
  private val layers = IndexedSeq(5000L, 17L, 200000L, 3L)
  private val cuts = Seq(Seq(Batch(1, 4)), Seq(Batch(3, 4), Batch(1, 2)), (1 to 4).map(layer => Batch(layer, layer)))

  cuts.foreach { cut =>
    test(s"reduce adds the peers' gradients, in rank order, to the shard and to nothing else: ${cut.mkString}") {
      val random = new Random(5)
      val layout = new ShardLayout(layers, 3)
      val map = new SegmentMap(layout, 1, WireFormat.Fp32)
      Memory.withSegment(map.bytes) { segment =>
        val own = Array.fill(layout.total.toInt)(random.nextGaussian().toFloat)
        segment.putFloats(map.gradients, own, own.length)
        val expected = own.clone
        val math = new ShardMath(segment, map)
        cut.map(map.slice(1, _)).foreach { slice =>
          val arrived = Seq(0, 2).map { peer =>
            val values = Array.fill(slice.shape.count.toInt)(random.nextGaussian().toFloat)
            segment.putFloats(map.inbox(peer, slice), values, values.length)
            values
          }
          slice.shape.ranges.flatMap(range => range.start until range.end).zipWithIndex.foreach { case (element, at) =>
            expected(element.toInt) = own(element.toInt) + arrived(0)(at) + arrived(1)(at)
          }
          math.reduce(slice)
        }
        val result = new Array[Float](own.length)
        segment.getFloats(map.gradients, result, result.length)
        assert(result === expected)
      }
    }
  }

  for (half <- Seq(WireFormat.Bf16, WireFormat.Fp16); cut <- cuts)
    test(s"what is staged in ${half.name} and unpacked elsewhere is what its owner computes with: ${cut.mkString}") {
      val random = new Random(6)
      val layout = new ShardLayout(layers, 2)
      val owner = new SegmentMap(layout, 0, half)
      val reader = new SegmentMap(layout, 1, half)
      Memory.withSegment(owner.bytes) { owned =>
        Memory.withSegment(reader.bytes) { read =>
          owner.shard.foreach { range =>
            val exact = Array.fill(range.count.toInt)(random.nextGaussian().toFloat)
            owned.putFloats(owner.master(range), exact, exact.length)
          }
          val sending = new ShardMath(owned, owner)
          val receiving = new ShardMath(read, reader)
          cut.map(owner.slice(0, _)).foreach { slice =>
            sending.stageMaster(half, slice, owner.parameters(0))
            val staged = owned.slices(owner.shardStaging(slice), slice.shape.count * 2)
            staged.foldLeft(reader.pullbox(0, slice)) { (at, part) =>
              val bytes = part.remaining
              read.put(at, part)
              at + bytes
            }
            receiving.unpack(half, reader.pullbox(0, slice), slice.shape, reader.parameters(0))
          }
          owner.shard.foreach { range =>
            val exact, mine, theirs = new Array[Float](range.count.toInt)
            owned.getFloats(owner.master(range), exact, exact.length)
            owned.getFloats(owner.parameters(0) + range.start * 4, mine, mine.length)
            read.getFloats(reader.parameters(0) + range.start * 4, theirs, theirs.length)
            assert(mine === theirs)
            assert(mine.zip(exact).forall { case (rounded, value) =>
              math.abs(rounded - value) <= math.abs(value) / 256
            })
            assert(mine.exists(_ != 0))
          }
        }
      }
    }

  test("nothing in a segment overlaps, however it is cut") {
    for (wire <- Seq(WireFormat.Fp32, WireFormat.Bf16); ahead <- Seq(false, true); cut <- cuts) {
      val map = new SegmentMap(new ShardLayout(layers, 4), 2, wire, ahead)
      val own = cut.map(map.slice(2, _))
      val others = for (peer <- Seq(0, 1, 3); batch <- cut) yield (peer, map.slice(peer, batch))
      def staged(slice: ShardSlice) =
        if (wire == WireFormat.Fp32) slice.shape.packedCount * 4 else slice.shape.count * 2
      val parts = (map.parameterBuffers :+ map.gradients).map((_, map.layout.total * 4)) ++ Seq((map.summed, 8L)) ++
        own.map(slice => (map.shardStaging(slice), staged(slice))) ++
        (for (peer <- Seq(0, 1, 3); slice <- own) yield (map.inbox(peer, slice), slice.shape.count * wire.bytes)) ++
        others.map { case (peer, slice) =>
          (map.gradientStaging(peer, slice), staged(slice))
        } ++
        (if (wire == WireFormat.Fp32) Nil
         else others.map { case (peer, slice) => (map.pullbox(peer, slice), slice.shape.count * 2) }) ++
        (if (wire == WireFormat.Fp32 && !ahead) Nil
         else map.shard.map(range => (map.master(range), range.count * 4)))
      val sorted = parts.filter(_._2 > 0).sortBy(_._1)
      sorted.zip(sorted.tail).foreach { case ((begin, bytes), (next, _)) => assert(begin + bytes <= next) }
      assert(sorted.last._1 + sorted.last._2 <= map.bytes)
    }
  }
}
