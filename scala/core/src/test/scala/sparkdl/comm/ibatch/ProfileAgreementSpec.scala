package sparkdl.comm.ibatch

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.ProfileAgreement.{agree, agreedSeconds, drift}

class ProfileAgreementSpec extends AnyFunSuite {
  private def profile(startup: Double, perByte: Double, compute: Double*): DirectionProfile =
    DirectionProfile(compute.toIndexedSeq, startup, perByte)

  test("ranks agree on the slowest, in each of its times") {
    val found = Seq(
      profile(1, 5, 1, 8).copy(gap = Some(0.5), sum = 3),
      profile(2, 4, 2, 9).copy(update = 7),
      profile(9, 1, 3, 1).copy(gap = Some(0.25), sum = 1)
    )
    assert(agree(found) === Some(DirectionProfile(IndexedSeq(2, 9), 9, 5, Some(0.5), sum = 3, update = 7)))
    assert(agree(found.tail.take(1)).flatMap(_.gap) === None)
    assert(agree(Nil) === None)
  }

  test("an iteration takes what it takes in the middle of the ranks") {
    assert(agreedSeconds(Seq(1, 4, 2)) === Some(2))
    assert(agreedSeconds(Seq(4, 1, 2, 3)) === Some(2.5))
    assert(agreedSeconds(Nil) === None)
  }

  test("drift is the largest change") {
    val before = profile(0.5, 2, 1, 3)
    assert(drift(before, before) === 0)
    assert(drift(before, profile(0.5, 2, 3, 1)) === 0, "sums count, single layers scatter")
    assert(drift(before, profile(0.5, 1.8, 2, 3)) === 0.25)
    assert(drift(before, profile(0.2, 2, 1, 3)) === 0.6)
    assert(drift(before, before.copy(gap = Some(0))) === 0.5, "a gap that was not known")
    assert(drift(before, before.copy(sum = 1, update = 1)) === 0.5)
    assert(drift(profile(0, 2, 1), profile(0.1, 2, 1)) === 1, "from nothing")
  }
}
