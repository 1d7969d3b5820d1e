// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

import org.scalatest.funsuite.AnyFunSuite

class AutotunerSpec extends AnyFunSuite {
  import Policy.{IBatch, Layerwise, Parts, Whole}

  private val batches =
    Map[Policy, Int](Whole -> 2, Parts(24) -> 48, IBatch -> 60, Layerwise -> 200)

  private def measured(policy: Policy, seconds: Double) =
    Autotuner.Measured(seconds, predictedSeconds = seconds / 2, batches(policy), pushes = 0)

  /** Return the policy in use after each of `seconds`. */
  private def inUse(autotuner: Autotuner, seconds: Double*): Seq[Policy] = seconds.map { each =>
    assert(!autotuner.isOver)
    autotuner.record(measured(autotuner.current, each))
    autotuner.current
  }

  private def autotuner =
    new Autotuner(IBatch, Seq(Layerwise), ListMap(Whole -> measured(Whole, 3.0)))

  test("the plan comes first, then the others in turn, then the fastest") {
    val tuner = autotuner
    assert(tuner.current === IBatch)
    assert(inUse(tuner, 0.9, 1.0) === Seq(Layerwise, IBatch))
    assert(tuner.isOver)
    assert(tuner.measurements.toSeq.map { case (policy, each) =>
      (policy, each.seconds, each.predictedSeconds)
    } ===
      Seq((Whole, 3.0, 1.5), (IBatch, 0.9, 0.45), (Layerwise, 1.0, 0.5)))
  }

  test("a plan that loses is used once more, and its faster measurement counts") {
    val slowAtFirst = autotuner
    assert(inUse(slowAtFirst, 2.0, 0.9, 0.8) === Seq(Layerwise, IBatch, IBatch))
    assert(slowAtFirst.isOver && slowAtFirst.measurements(IBatch).seconds === 0.8)
    val slower = autotuner
    assert(inUse(slower, 1.0, 0.9, 1.5) === Seq(Layerwise, IBatch, Layerwise))
    assert(slower.isOver && slower.measurements(IBatch).seconds === 1.0)
    assert(inUse(autotuner, 4.0, 5.0, 4.0) === Seq(Layerwise, IBatch, Whole), "measured before")
  }

  test("a policy that is faster by chance only does not replace the plan") {
    assert(inUse(autotuner, 1.0, 0.99) === Seq(Layerwise, IBatch))
  }

  test("a policy that is as fast with fewer batches replaces the plan") {
    def tuner = new Autotuner(IBatch, Seq(Parts(24)), ListMap.empty)
    assert(inUse(tuner, 1.0, 1.01, 1.0) === Seq(Parts(24), IBatch, Parts(24)))
    assert(inUse(tuner, 1.0, 1.03) === Seq(Parts(24), IBatch))
  }

  test("only the plan is tried if all other policies were measured") {
    val alone = new Autotuner(IBatch, Nil, ListMap(Layerwise -> measured(Layerwise, 2.0)))
    assert(inUse(alone, 2.0) === Seq(IBatch))
    assert(alone.isOver)
  }
}
