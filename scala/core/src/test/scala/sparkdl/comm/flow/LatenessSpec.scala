package sparkdl.comm.flow

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

class LatenessSpec extends AnyFunSuite {
  private val Milli = 1000L * 1000

  test("how late something is heard, whatever the other clock shows, and though the clocks drift apart") {
    for (origin <- Seq(0L, -5000000 * Milli, Long.MaxValue / 2); drift <- Seq(0.0, 1e-4, -1e-4)) {
      val random = new Random(1)
      val lateness = new Lateness
      (1 to 10000).foreach { number =>
        val said = 10L * number * Milli
        val late = if (number % 10 == 1) 0 else (random.nextInt(80) * Milli).toLong
        val found = lateness.of(origin + said + (said * drift).toLong, said + 3 * Milli + late)
        withClue(s"$origin, $drift, $number: ")(assert(math.abs(found - late) <= 2.1 * Milli))
      }
    }
  }

  for (back <- Seq(1000L, 100000000L))
    test(s"a clock that is set back by $back ms, as of a machine that starts again, makes nothing late") {
      val lateness = new Lateness
      val before = (1 to 20).map(number => lateness.of((back + 10 * number) * Milli, 10 * number * Milli))
      val after = (21 to 3000).map(number => lateness.of(10 * number * Milli, (10 * number + number % 3) * Milli))
      assert(before.forall(_ == 0) && after.forall(_ <= 2 * Milli))
    }

  test("what is heard in another order than it was said, over two connections, is as late as it is") {
    val lateness = new Lateness
    assert(lateness.of(100 * Milli, 103 * Milli) === 0)
    assert(lateness.of(50 * Milli, 104 * Milli) === 51 * Milli)
    assert(lateness.of(101 * Milli, 105 * Milli) === Milli)
  }

  test("a path that becomes longer is believed in the end") {
    val lateness = new Lateness
    assert(lateness.of(0, 5 * Milli) === 0)
    assert(lateness.of(Milli, 26 * Milli) === 20 * Milli)
    (0 to 1000).foreach(number => lateness.of((number * 25 + 1) * Milli, (number * 25 + 26) * Milli))
    assert(lateness.of(30000 * Milli, 30026 * Milli) === Milli)
  }
}
