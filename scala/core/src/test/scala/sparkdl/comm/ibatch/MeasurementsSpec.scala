// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.DirectionProfile.agree
import sparkdl.comm.ibatch.RecentSteps.median

class MeasurementsSpec extends AnyFunSuite {
  private def profile(startup: Double, perByte: Double, compute: Double*): DirectionProfile =
    DirectionProfile(compute.toIndexedSeq, startup, perByte)

  test("ranks agree on the maximum of each time") {
    val found = Seq(
      profile(1, 5, 1, 8).copy(gap = Some(0.5), sum = 3),
      profile(2, 4, 2, 9).copy(update = 7),
      profile(9, 1, 3, 1).copy(gap = Some(0.25), sum = 1)
    )
    assert(agree(found) === Some(DirectionProfile(
      IndexedSeq(2, 9),
      9,
      5,
      Some(0.5),
      sum = 3,
      update = 7
    )))
    assert(agree(found.tail.take(1)).flatMap(_.gap) === None)
    assert(agree(Nil) === None)
  }

  test("a median lies in the middle of the sorted values") {
    assert(median(Seq(1, 4, 2)) === Some(2))
    assert(median(Seq(4, 1, 2, 3)) === Some(2.5))
    assert(median(Nil) === None)
  }

  test("drift is the largest change") {
    val before = profile(0.5, 2, 1, 3)
    assert(before.drift(before) === 0)
    assert(profile(0.5, 2, 3, 1).drift(before) === 0, "only sums count, as single layers vary")
    assert(profile(0.5, 1.8, 2, 3).drift(before) === 0.25)
    assert(profile(0.2, 2, 1, 3).drift(before) === 0.6)
    assert(before.copy(gap = Some(0)).drift(before) === 0.5, "the gap was unknown before")
    assert(before.copy(sum = 1, update = 1).drift(before) === 0.5)
    assert(profile(0.1, 2, 1).drift(profile(0, 2, 1)) === 1, "from nothing")
  }
}
