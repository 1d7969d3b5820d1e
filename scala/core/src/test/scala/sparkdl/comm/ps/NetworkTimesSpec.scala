// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import org.scalatest.funsuite.AnyFunSuite

class NetworkTimesSpec extends AnyFunSuite {
  private val Second = 1000000000L

  private def block(
      from: Int,
      requested: Double,
      first: Double,
      last: Double,
      bytes: Long
  ): BlockTimes =
    BlockTimes(
      from,
      (requested * Second).toLong,
      (first * Second).toLong,
      (last * Second).toLong,
      bytes
    )

  private def transfer(buckets: Seq[BlockTimes]*): Transfer =
    Transfer(buckets.flatten.map(_.bytes).sum, buckets)

  private def profile(times: NetworkTimes) = times.profile(IndexedSeq(1.0), 0.5)

  test("a start-up ends with the first byte, and parallel transfers count once") {
    val times = new NetworkTimes(10)
    assert(profile(times) === None)
    times.add(transfer(), ends = true)
    assert(profile(times) === None, "nothing arrived in the step")
    times.add(transfer(Nil, Seq(block(1, 10, 11, 13, 100), block(2, 10, 12, 16, 300))), ends = true)
    val one = profile(times).get
    assert((one.startup, one.perByte, one.gap, one.sum) === ((1.0, 5.0 / 400, None, 0.0)))
    assert((one.compute, one.update) === ((IndexedSeq(1.0), 0.5)))
    times.add(transfer(Seq(block(1, 0, 2, 3, 100), block(2, 3, 4, 5, 100))), ends = true)
    val two = profile(times).get
    assert(two.startup === 1.5)
    assert(
      two.perByte === (5.0 / 400 + 2.0 / 200) / 2,
      "the pause between two transfers does not count"
    )
  }

  test("overlapping buckets count once and do not show start-ups") {
    val times = new NetworkTimes(10)
    times.add(transfer(Seq(block(1, 0, 1, 4, 300))), ends = false)
    val later =
      Seq(Seq(block(1, 0, 4, 6, 100), block(2, 0, 3, 5, 100)), Seq(block(1, 10, 13, 15, 100)))
    times.add(transfer(later: _*), ends = true)
    val found = profile(times).get
    assert(
      (found.startup, found.perByte) === ((2.0, 7.0 / 600)),
      "from the first and the last bucket"
    )
  }

  test("inline blocks are not measured") {
    val times = new NetworkTimes(10)
    val withNotice = block(1, 10, 10, 10.1, 100)
    times.add(transfer(Seq(withNotice)), ends = true)
    assert(profile(times) === None)
    times.add(transfer(Seq(withNotice, block(2, 10, 12, 16, 400))), ends = true)
    assert(profile(times).map(found => (found.startup, found.perByte)) === Some((2.0, 4.0 / 400)))
  }

  test("the gap is the least time between first bytes of one server, and no more than a start-up") {
    val times = new NetworkTimes(10)
    val (first, second, third) =
      (block(1, 0, 5, 6, 100), block(1, 0, 8, 9, 100), block(1, 8.5, 9, 10, 100))
    times.add(transfer(Seq(first, block(2, 0, 5.5, 6, 100)), Seq(second), Seq(third)), ends = true)
    assert(profile(times).get.gap === Some(3.0), "the third was requested after the second began")
    times.add(transfer(Seq(block(1, 0, 2, 6, 100)), Seq(block(1, 0, 9, 9.5, 100))), ends = true)
    val found = profile(times).get
    assert((found.startup, found.gap) === ((3.5, Some(3.5))))
  }

  test("sums count per step, and only the last steps count") {
    val times = new NetworkTimes(1)
    def bucket(seconds: Long) =
      transfer(Seq(block(1, 0, 1, 4, 300))).copy(sum =
        Some(Span(4 * Second, (4 + seconds) * Second))
      )
    times.add(bucket(9), ends = true)
    times.add(bucket(1), ends = false)
    times.add(bucket(2), ends = true)
    assert(profile(times).map(_.sum) === Some(3.0))
  }
}
