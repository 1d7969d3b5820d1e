package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

import org.scalatest.funsuite.AnyFunSuite

class AutotunerSpec extends AnyFunSuite {
  import Policy.{IBatch, Layerwise, Parts, Whole}

  private val batches = Map[Policy, Int](Whole -> 2, Parts(24) -> 48, IBatch -> 60, Layerwise -> 200)

  private def measured(policy: Policy, seconds: Double) =
    Autotuner.Measured(seconds, predicted = seconds / 2, batches(policy), pushes = 0)

  /** What is in use after each of `seconds`. */
  private def inUse(autotuner: Autotuner, seconds: Double*): Seq[Policy] = seconds.map { each =>
    assert(!autotuner.isOver)
    autotuner.took(measured(autotuner.current, each))
    autotuner.current
  }

  private def autotuner = new Autotuner(IBatch, Seq(Layerwise), ListMap(Whole -> measured(Whole, 3.0)))

  test("the plan comes first, then the others in turn, then the fastest") {
    val tried = autotuner
    assert(tried.current === IBatch)
    assert(inUse(tried, 1.0, 0.9) === Seq(Layerwise, Layerwise))
    assert(tried.isOver)
    assert(tried.tried.toSeq.map { case (policy, each) => (policy, each.seconds, each.predicted) } ===
      Seq((Whole, 3.0, 1.5), (IBatch, 1.0, 0.5), (Layerwise, 0.9, 0.45)))
    assert(inUse(autotuner, 4.0, 5.0) === Seq(Layerwise, Whole), "that was known from before")
  }

  test("what is as fast as the plan, but for chance, does not take its place") {
    assert(inUse(autotuner, 1.0, 0.99) === Seq(Layerwise, IBatch))
  }

  test("but with fewer batches it does") {
    def tried = new Autotuner(IBatch, Seq(Parts(24)), ListMap.empty)
    assert(inUse(tried, 1.0, 1.01) === Seq(Parts(24), Parts(24)))
    assert(inUse(tried, 1.0, 1.03) === Seq(Parts(24), IBatch))
  }

  test("where all else is known the plan alone is tried") {
    val alone = new Autotuner(IBatch, Nil, ListMap(Layerwise -> measured(Layerwise, 2.0)))
    assert(inUse(alone, 2.0) === Seq(IBatch))
    assert(alone.isOver)
  }
}
