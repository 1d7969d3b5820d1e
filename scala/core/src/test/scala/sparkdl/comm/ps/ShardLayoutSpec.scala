// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Seeds

class ShardLayoutSpec extends AnyFunSuite {
  private def layouts(seed: Int): Iterator[ShardLayout] = {
    val random = Seeds.random(seed)
    Iterator.fill(200) {
      val sizes =
        IndexedSeq.fill(1 + random.nextInt(30))(1L + random.nextInt(1 << (1 + random.nextInt(20))))
      new ShardLayout(sizes, 1 + random.nextInt(9))
    }
  }

  test("the shards of all servers cover every element exactly once") {
    layouts(1).foreach { layout =>
      val ranges = (0 until layout.world).flatMap(layout.shard).sortBy(_.start)
      assert(ranges.head.start === 0)
      ranges.zip(ranges.tail).foreach { case (left, right) => assert(left.end === right.start) }
      assert(ranges.last.end === layout.total)
    }
  }

  test("every layer with at least one cache line per server is striped over all servers") {
    layouts(2).foreach { layout =>
      layout.layers.indices.filter(layout.layers(_) > layout.world * layout.world * 16L).foreach {
        layer =>
          assert((0 until layout.world).forall(layout.stripe(layer, _).isDefined))
      }
    }
  }

  test("no server exceeds its share by more than a cache line per layer") {
    layouts(3).foreach { layout =>
      (0 until layout.world).foreach { server =>
        assert(layout.shard(server).map(_.count).sum <= layout.total / layout.world + 16L * layout
          .layers.size)
      }
    }
  }

  test("blocks of consecutive batches have together the elements of the whole block") {
    layouts(4).foreach { layout =>
      val cut = layout.layers.size / 2
      (0 until layout.world).foreach { server =>
        val batches = Seq((0, cut - 1), (cut, layout.layers.size - 1)).filter(b => b._1 <= b._2)
        val parts = batches.flatMap(batch => layout.block(server, batch._1, batch._2).ranges)
        assert(parts.sortBy(_.start) === layout.wholeBlock(server).ranges.sortBy(_.start))
      }
    }
  }

  test("short ranges are gathered, long ones served in place") {
    val shape = new ShardLayout(IndexedSeq(10, 1000000, 64, 500000), 2).wholeBlock(0)
    assert(shape.packed.forall(_.count < ShardLayout.PackBelow))
    assert(shape.direct.map(_.count) === Seq(500000, 250000))
  }

  test("a network without parameters is refused") {
    intercept[IllegalArgumentException](new ShardLayout(IndexedSeq.empty, 2))
    intercept[IllegalArgumentException](new ShardLayout(IndexedSeq(5, 0), 2))
  }
}
