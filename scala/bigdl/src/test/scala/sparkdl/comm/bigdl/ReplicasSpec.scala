// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.{Criterion, SparkdlBigDL}
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.feature.dataset.MiniBatch
import com.intel.analytics.bigdl.dllib.nn.{Linear, MSECriterion, Sequential}
import com.intel.analytics.bigdl.dllib.optim.Loss
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.numeric.NumericFloat

import sparkdl.comm.SystemClock

class ReplicasSpec extends AnyFunSuite {
  private val network: Network = Sequential().add(Linear(3, 2)).add(Linear(2, 1))

  private def replicas(count: Int): Replicas = {
    SparkdlBigDL.setNodeAndCore(1, count)
    def criterion: Criterion[Float] = MSECriterion[Float]().asInstanceOf[Criterion[Float]]
    def replica: Replica =
      Replica(
        network.cloneModule(),
        criterion,
        Seq(new Loss(criterion)),
        new Stopwatch(SystemClock)
      )
    new Replicas(IndexedSeq.fill(count)(replica))
  }

  private def batch(rows: Int): MiniBatch[Float] = {
    val input = Tensor(rows, 3)
    (1 to rows).foreach(row =>
      (1 to 3).foreach(column => input.setValue(row, column, row * 0.1f + column))
    )
    MiniBatch(input, Tensor(rows, 1).fill(0.5f))
  }

  test("replicas share parameters and have separate gradients") {
    val two = replicas(2)
    val losses = new java.util.concurrent.ConcurrentHashMap[Int, Double]
    two.train(batch(4))((replica, loss) => losses.put(replica, loss))
    assert(losses.size === 2)
    assert(two.gradients.size === 2)
    assert(two.gradients(0) !== two.gradients(1))

    val one = replicas(1)
    var whole = 0.0
    one.train(batch(4))((_, loss) => whole = loss)
    assert(math.abs((losses.get(0) + losses.get(1)) / 2 - whole) < 1e-6)
    one.gradients(0).indices.foreach { element =>
      val mean = (two.gradients(0)(element) + two.gradients(1)(element)) / 2
      assert(math.abs(mean - one.gradients(0)(element)) < 1e-5)
    }
  }

  test("all replicas compute with written parameters") {
    val two = replicas(2)
    java.util.Arrays.fill(two.weights, 0f)
    val losses = new java.util.concurrent.ConcurrentHashMap[Int, Double]
    two.train(batch(4))((replica, loss) => losses.put(replica, loss))
    assert((losses.get(0), losses.get(1)) === ((0.25, 0.25)))
  }

  test("a batch that cannot be cut into equal parts is refused") {
    intercept[UnsupportedTrainingException](replicas(2).train(batch(3))((_, _) => ()))
  }

  test("validation uses each row once") {
    val results = replicas(2).evaluate(Iterator(batch(3), batch(2))).get
    assert(results.head.result()._2 === 5)
    assert(replicas(2).evaluate(Iterator.empty).isEmpty)
  }
}
