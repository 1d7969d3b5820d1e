package sparkdl.comm.ibatch

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.ProfileAgreement.{agree, drift, medianSeconds}

class ProfileAgreementSpec extends AnyFunSuite {
  private def profile(startup: Double, perByte: Double, compute: Double*): DirectionProfile =
    DirectionProfile(compute.toIndexedSeq, startup, perByte)

  test("ranks agree on the maximum of each time") {
    val found = Seq(
      profile(1, 5, 1, 8).copy(gap = Some(0.5), sum = 3),
      profile(2, 4, 2, 9).copy(update = 7),
      profile(9, 1, 3, 1).copy(gap = Some(0.25), sum = 1)
    )
    assert(agree(found) === Some(DirectionProfile(IndexedSeq(2, 9), 9, 5, Some(0.5), sum = 3, update = 7)))
    assert(agree(found.tail.take(1)).flatMap(_.gap) === None)
    assert(agree(Nil) === None)
  }

  test("the agreed time of an iteration is the median over ranks") {
    assert(medianSeconds(Seq(1, 4, 2)) === Some(2))
    assert(medianSeconds(Seq(4, 1, 2, 3)) === Some(2.5))
    assert(medianSeconds(Nil) === None)
  }

  test("drift is the largest change") {
    val before = profile(0.5, 2, 1, 3)
    assert(drift(before, before) === 0)
    assert(drift(before, profile(0.5, 2, 3, 1)) === 0, "only sums count, as single layers vary")
    assert(drift(before, profile(0.5, 1.8, 2, 3)) === 0.25)
    assert(drift(before, profile(0.2, 2, 1, 3)) === 0.6)
    assert(drift(before, before.copy(gap = Some(0))) === 0.5, "the gap was unknown before")
    assert(drift(before, before.copy(sum = 1, update = 1)) === 0.5)
    assert(drift(profile(0, 2, 1), profile(0.1, 2, 1)) === 1, "from nothing")
  }
}
