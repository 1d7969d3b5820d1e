// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import scala.util.Random

/**
 * Seeds of what tests draw: a few fixed ones in `make test`, many new ones in `make test-all`. The
 * environment variable `SPARKDL_TEST_SEED` chooses, as in tests/seeds.py: unset or 0 for the fixed
 * ones, `random` for new ones, or the number that a run has printed.
 */
object Seeds {
  private val Variable = "SPARKDL_TEST_SEED"

  /** Number of seeds that each run has for itself, so that no two runs share a seed. */
  private val Stride = 100000L

  private val run: Long = sys.env.get(Variable).filter(_.nonEmpty).getOrElse("0") match {
    case "random" => 1 + Random.nextInt(Stride.toInt)
    case number => number.toLong
  }
  private val areNew = run > 0
  if (areNew) println(s"draws: random; $Variable=$run draws the same again")

  /** Return generator `number` of this run. */
  def random(number: Int): Random = new Random(Stride * run + number)

  /** Return the seeds of a test with `few` draws in `make test` and `many` in `make test-all`. */
  def seeds(few: Int, many: Int): Seq[Long] =
    (1 to (if (areNew) many else few)).map(Stride * run + _)

  /** Return all cases in `make test-all`, and in `make test` every one whose index `step` divides. */
  def some[T](cases: Seq[T], step: Int): Seq[T] =
    if (areNew) cases else cases.indices.by(step).map(cases)
}
