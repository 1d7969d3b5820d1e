// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.Batch

class LayerUsesSpec extends AnyFunSuite {
  test("the first step counts the uses of each layer, and finds the unreported layers") {
    val uses = new LayerUses(3)
    Seq(0, 1).foreach(uses.recordUse)
    assert(
      !Seq(1, 1, 0).exists(uses.isComplete),
      "all gradients travel at the end of the first step"
    )
    uses.endStep()
    assert(uses.unreported === Seq(2))
    assert(!uses.isComplete(1))
    assert(uses.isComplete(1))
    assert(!uses.isTooLate(1))
    assert(uses.isComplete(0))
    assert(!uses.isComplete(2), "its uses are unknown")
    assert(!uses.isComplete(1) && uses.isTooLate(1))
    uses.endStep()
    assert(!uses.isComplete(1) && uses.isComplete(1))
  }

  test("buckets have their layers, and count down to their completion") {
    val buckets = new LayerBuckets(IndexedSeq(Batch(3, 3), Batch(1, 2)))
    assert(buckets.bucketOf === Seq(1, 1, 0))
    val countdown = new Countdown(buckets)
    assert(Seq(2, 1, 0).map(countdown.countDown) === Seq(Some(0), None, Some(1)))
  }
}
