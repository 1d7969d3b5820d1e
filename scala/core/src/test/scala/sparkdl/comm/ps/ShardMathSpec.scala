package sparkdl.comm.ps

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

class ShardMathSpec extends AnyFunSuite {
  private val layers = IndexedSeq(5000L, 17L, 200000L, 3L)

  test("reduce adds the peers' gradients, in rank order, to the shard and to nothing else") {
    val random = new Random(5)
    val layout = new ShardLayout(layers, 3)
    val map = new SegmentMap(layout, 1, WireFormat.Fp32)
    Memory.withSegment(map.bytes) { segment =>
      val own = Array.fill(layout.total.toInt)(random.nextGaussian().toFloat)
      segment.putFloats(map.gradients, own, own.length)
      val arrived = map.inbox.map { case (peer, slot) =>
        val values = Array.fill(map.shard.count.toInt)(random.nextGaussian().toFloat)
        segment.putFloats(slot, values, values.length)
        peer -> values
      }
      new ShardMath(segment, map).reduce()
      val expected = own.clone
      var position = 0
      map.shard.ranges.foreach { range =>
        (range.start until range.end).foreach { element =>
          expected(element.toInt) = own(element.toInt) + arrived(0)(position) + arrived(2)(position)
          position += 1
        }
      }
      val result = new Array[Float](own.length)
      segment.getFloats(map.gradients, result, result.length)
      assert(result === expected)
    }
  }

  Seq(WireFormat.Bf16, WireFormat.Fp16).foreach { half =>
    test(s"a shard that is staged in ${half.name} and unpacked elsewhere is what its owner computes with") {
      val random = new Random(6)
      val layout = new ShardLayout(layers, 2)
      val owner = new SegmentMap(layout, 0, half)
      val reader = new SegmentMap(layout, 1, half)
      Memory.withSegment(owner.bytes) { owned =>
        Memory.withSegment(reader.bytes) { read =>
          val master = Array.fill(owner.shard.count.toInt)(random.nextGaussian().toFloat)
          owned.putFloats(owner.master.get, master, master.length)
          new ShardMath(owned, owner).stageMaster(half, owner.master.get)
          owned.slices(owner.shardStaging, owner.shard.count * 2).foreach(read.put(reader.pullbox(0), _))
          new ShardMath(read, reader).unpack(half, reader.pullbox(0), owner.shard)
          owner.shard.ranges.foreach { range =>
            val mine, theirs = new Array[Float](range.count.toInt)
            owned.getFloats(owner.parameters + range.start * 4, mine, mine.length)
            read.getFloats(reader.parameters + range.start * 4, theirs, theirs.length)
            assert(mine === theirs)
            assert(mine.exists(_ != 0))
          }
        }
      }
    }
  }

  test("nothing in a segment overlaps") {
    Seq(WireFormat.Fp32, WireFormat.Bf16).foreach { wire =>
      val map = new SegmentMap(new ShardLayout(layers, 4), 2, wire)
      val shard = map.shard.count * wire.bytes
      val parts = Seq((map.parameters, map.layout.total * 4), (map.gradients, map.layout.total * 4)) ++
        map.inbox.values.map((_, shard)) ++ map.master.map((_, map.shard.count * 4)) ++
        map.pullbox.map { case (peer, slot) => (slot, map.shapes(peer).count * 2) }
      val sorted = parts.sortBy(_._1)
      sorted.zip(sorted.tail).foreach { case ((begin, bytes), (next, _)) => assert(begin + bytes <= next) }
      assert(sorted.last._1 + sorted.last._2 <= map.bytes)
    }
  }
}
