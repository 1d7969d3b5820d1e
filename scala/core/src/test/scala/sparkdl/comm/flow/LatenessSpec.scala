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

  test("a path that becomes longer is believed in the end") {
    val lateness = new Lateness
    assert(lateness.of(0, 5 * Milli) === 0)
    assert(lateness.of(Milli, 26 * Milli) === 20 * Milli)
    (0 to 1000).foreach(number => lateness.of((number * 25 + 1) * Milli, (number * 25 + 26) * Milli))
    assert(lateness.of(30000 * Milli, 30026 * Milli) === Milli)
  }
}
