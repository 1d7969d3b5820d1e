// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

class QueueingDelaySpec extends AnyFunSuite {
  private val Milli = 1000L * 1000

  test("the queueing delay is right for any origin and drift of the peer's clock") {
    for (origin <- Seq(0L, -5000000 * Milli, Long.MaxValue / 2); drift <- Seq(0.0, 1e-4, -1e-4)) {
      val random = new Random(1)
      val queueingDelay = new QueueingDelay
      (1 to 10000).foreach { number =>
        val peerTime = 10L * number * Milli
        val delayNanos = if (number % 10 == 1) 0 else (random.nextInt(80) * Milli).toLong
        val found =
          queueingDelay.record(
            origin + peerTime + (peerTime * drift).toLong,
            peerTime + 3 * Milli + delayNanos
          )
        withClue(s"$origin, $drift, $number: ")(assert(math.abs(found - delayNanos) <= 2.1 * Milli))
      }
    }
  }

  for (back <- Seq(1000L, 100000000L))
    test(s"a clock that is set back by $back ms, as after a reboot, adds no delay") {
      val queueingDelay = new QueueingDelay
      val before = (1 to 20).map(number =>
        queueingDelay.record((back + 10 * number) * Milli, 10 * number * Milli)
      )
      val after =
        (21 to 3000).map(number =>
          queueingDelay.record(10 * number * Milli, (10 * number + number % 3) * Milli)
        )
      assert(before.forall(_ == 0) && after.forall(_ <= 2 * Milli))
    }

  test("reports out of order, over two connections, have their own delays") {
    val queueingDelay = new QueueingDelay
    assert(queueingDelay.record(100 * Milli, 103 * Milli) === 0)
    assert(queueingDelay.record(50 * Milli, 104 * Milli) === 51 * Milli)
    assert(queueingDelay.record(101 * Milli, 105 * Milli) === Milli)
  }

  test("a path that becomes longer is accepted after a while") {
    val queueingDelay = new QueueingDelay
    assert(queueingDelay.record(0, 5 * Milli) === 0)
    assert(queueingDelay.record(Milli, 26 * Milli) === 20 * Milli)
    (0 to 1000).foreach(number =>
      queueingDelay.record((number * 25 + 1) * Milli, (number * 25 + 26) * Milli)
    )
    assert(queueingDelay.record(30000 * Milli, 30026 * Milli) === Milli)
  }
}
