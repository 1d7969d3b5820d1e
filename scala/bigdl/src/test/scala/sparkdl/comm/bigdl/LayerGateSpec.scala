// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import scala.collection.mutable

import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.nn.{
  Concat,
  Graph,
  Input,
  Linear,
  ReLU,
  Recurrent,
  RnnCell,
  Select,
  Sequential,
  Tanh
}
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.numeric.NumericFloat

class LayerGateSpec extends AnyFunSuite {
  private final class Recorder extends LayerListener {
    val events = mutable.ArrayBuffer.empty[String]
    override def onUse(replica: Int, layer: Int): Unit = events += s"needed $layer"
    override def onGradients(replica: Int, layer: Int): Unit = events += s"made $layer"
  }

  private def linear(inputs: Int, outputs: Int): Network =
    Linear(inputs, outputs).asInstanceOf[Network]

  /** Return the events of one training step. */
  private def stepOf(network: Network, input: Tensor[Float], outputs: Int): Seq[String] = {
    val layers = NetworkLayers(network, SparkdlBigDL.flatten(network)._1.nElement())
    val recorder = new Recorder
    val gate = new LayerGate(0, layers.layerOf, recorder)
    SparkdlBigDL.leaves(network).foreach(SparkdlBigDL.gate(_, gate))
    network.training()
    network.forward(input)
    network.backward(input, Tensor(input.size(1), outputs).fill(1f))
    gate.clear()
    recorder.events.toSeq
  }

  test("layers of a sequence are used in order, and their gradients come in reverse order") {
    val network = Sequential().add(linear(3, 2)).add(ReLU()).add(linear(2, 1))
    assert(stepOf(network, Tensor(4, 3).rand(), 1) === Seq(
      "needed 0",
      "needed 1",
      "made 1",
      "made 0"
    ))
  }

  test(
    "layers of a graph and of branches are used in order, and their gradients come in reverse order"
  ) {
    val begin = Input()
    val hidden = linear(3, 2).inputs(begin)
    val network = Graph(begin, linear(2, 1).inputs(ReLU().inputs(hidden)))
    assert(stepOf(network, Tensor(4, 3).rand(), 1) === Seq(
      "needed 0",
      "needed 1",
      "made 1",
      "made 0"
    ))
    val branches = Sequential().add(Concat(2).add(linear(3, 2)).add(linear(3, 1)))
    assert(stepOf(branches, Tensor(4, 3).rand(), 3).toSet === Set(
      "needed 0",
      "needed 1",
      "made 0",
      "made 1"
    ))
  }

  test("clones of a cell use the same gate") {
    val network =
      Sequential().add(Recurrent().add(RnnCell(3, 2, Tanh()))).add(Select(2, -1)).add(linear(2, 1))
    val events = stepOf(network, Tensor(4, 5, 3).rand(), 1)
    val cell = events.filter(_.startsWith("needed")).groupBy(identity).values.map(_.size).max
    assert(cell === 5, "one for each time step")
    assert(events.last !== "needed 0")
  }

  test("evaluation does not wait for parameters") {
    val network = Sequential().add(linear(3, 2))
    val recorder = new Recorder
    val gate = new LayerGate(0, Map(network.modules.head.getName() -> 0), recorder)
    SparkdlBigDL.gate(network.modules.head.asInstanceOf[Network], gate)
    network.evaluate()
    network.forward(Tensor(4, 3).rand())
    assert(recorder.events.isEmpty)
    gate.clear()
  }
}
