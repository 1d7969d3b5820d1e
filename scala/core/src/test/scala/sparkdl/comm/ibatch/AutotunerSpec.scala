package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

import org.scalatest.funsuite.AnyFunSuite

class AutotunerSpec extends AnyFunSuite {
  import Policy.{IBatch, Layerwise, Whole}

  /** What is in use after each of `seconds`. */
  private def inUse(autotuner: Autotuner, seconds: Double*): Seq[Policy] = seconds.map { each =>
    assert(!autotuner.isOver)
    autotuner.took(each)
    autotuner.current
  }

  private def autotuner = new Autotuner(IBatch, Seq(Layerwise), ListMap(Whole -> 3.0))

  test("the plan comes first, then the others in turn, then the fastest") {
    val tried = autotuner
    assert(tried.current === IBatch)
    assert(inUse(tried, 1.0, 0.9) === Seq(Layerwise, Layerwise))
    assert(tried.isOver)
    assert(tried.seconds.toSeq === Seq(Whole -> 3.0, IBatch -> 1.0, Layerwise -> 0.9))
    assert(inUse(autotuner, 4.0, 5.0) === Seq(Layerwise, Whole), "that was known from before")
  }

  test("what is as fast as the plan, but for chance, does not take its place") {
    assert(inUse(autotuner, 1.0, 0.99) === Seq(Layerwise, IBatch))
  }

  test("where all else is known the plan alone is tried") {
    val alone = new Autotuner(IBatch, Nil, ListMap(Layerwise -> 2.0))
    assert(inUse(alone, 2.0) === Seq(IBatch))
    assert(alone.isOver)
  }
}
