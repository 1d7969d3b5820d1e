// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.io.{IOException, ObjectOutputStream}
import java.nio.file.Files

import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.nn.{Linear, Sequential}
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, SGD}
import com.intel.analytics.bigdl.numeric.NumericFloat

class CheckpointsSpec extends AnyFunSuite {
  private val network: Network = Sequential().add(Linear(3, 2))
  private val names = Set("first", "second")

  private def folder(): String = Files.createTempDirectory("sparkdl-checkpoints").toString

  private def methods(
      iteration: Int,
      second: OptimMethod[Float]
  ): Map[String, OptimMethod[Float]] = {
    val both = Map("first" -> new SGD[Float](0.1), "second" -> second)
    both.values.foreach(Progress(1, iteration, 0, 0).writeTo)
    both
  }

  /** Return the iteration of the last checkpoint, from the state of its methods. */
  private def latest(checkpoints: Checkpoints): Option[Int] =
    checkpoints.latest(names).map { case (_, found) =>
      SparkdlBigDL.state(found("second"))[Int]("neval")
    }

  test("the last checkpoint has the model and the methods") {
    val checkpoints = new Checkpoints(folder())
    assert(checkpoints.latest(names) === None)
    Seq(20, 100, 40).foreach(next =>
      checkpoints.save(network, methods(next, new SGD[Float](0.1)), next)
    )
    assert(latest(checkpoints) === Some(100))
    val weights = SparkdlBigDL.flatten(checkpoints.latest(names).get._1)._1
    assert(weights === SparkdlBigDL.flatten(network.cloneModule())._1)
    assert(new Checkpoints(folder()).latest(names) === None)
  }

  test("an incomplete checkpoint is ignored and written again") {
    val parent = folder()
    val checkpoints = new Checkpoints(parent)
    checkpoints.save(network, methods(20, new SGD[Float](0.1)), 20)
    intercept[IOException](checkpoints.save(network, methods(40, new HalfWritten), 40))
    assert(latest(checkpoints) === Some(20))
    checkpoints.save(network, methods(40, new SGD[Float](0.1)), 40)
    assert(latest(checkpoints) === Some(40))
    val files = new java.io.File(parent).list().filterNot(_.startsWith(".")).sorted.toSeq
    val expected = for (
      name <- Seq("model", "optimMethod-first", "optimMethod-second"); next <- Seq(20, 40)
    ) yield s"$name.$next"
    assert(files === expected)
  }
}

/** Method whose serialization fails, as if its executor were killed meanwhile. */
private final class HalfWritten extends SGD[Float](0.1) {
  private def writeObject(out: ObjectOutputStream): Unit = {
    out.defaultWriteObject()
    throw new IOException("killed")
  }
}
