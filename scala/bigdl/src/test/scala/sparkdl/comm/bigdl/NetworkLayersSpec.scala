// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.nn.{
  mkldnn,
  Concat,
  LSTM,
  Linear,
  ReLU,
  Recurrent,
  Select,
  Sequential
}
import com.intel.analytics.bigdl.numeric.NumericFloat

class NetworkLayersSpec extends AnyFunSuite {
  private def layersOf(network: Network): NetworkLayers =
    NetworkLayers(network, SparkdlBigDL.flatten(network)._1.nElement())

  private def linear(inputs: Int, outputs: Int, name: String): Network =
    Linear(inputs, outputs).setName(name).asInstanceOf[Network]

  test("layers are the leaves with parameters, in the order of the flat vector") {
    val network = Sequential().add(linear(3, 2, "first")).add(ReLU()).add(linear(2, 4, "second"))
    val layers = layersOf(network)
    assert(layers.starts === Seq(0, 8))
    assert(layers.counts === Seq(8, 12))
    assert(layers.layerOf === Map("first" -> 0, "second" -> 1))
  }

  test("each branch is a layer") {
    val branches =
      Concat(2).add(linear(3, 2, "left")).add(Sequential().add(linear(3, 5, "right")).add(ReLU()))
    val layers = layersOf(Sequential().add(branches).add(linear(7, 1, "last")))
    assert(layers.counts === Seq(8, 20, 8))
    assert(layers.layerOf === Map("left" -> 0, "right" -> 1, "last" -> 2))
  }

  test("a cell is one layer") {
    val network =
      Sequential().add(Recurrent().add(LSTM(3, 2))).add(Select(2, -1)).add(linear(2, 1, "last"))
    val layers = layersOf(network)
    assert(layers.counts.sum === layers.total)
    assert(layers.layerOf("last") === layers.size - 1)
    assert(layers.counts.last === 3)
  }

  test("two layers with the same name are refused") {
    val network = Sequential().add(linear(3, 2, "same")).add(linear(2, 4, "same"))
    assert(intercept[UnsupportedTrainingException](layersOf(network)).getMessage.contains(
      "are called same"
    ))
  }

  test("a network without parameters and layers of the engine mkldnn are refused") {
    def refused(network: Network): String =
      intercept[UnsupportedTrainingException](NetworkLayers.check(network)).getMessage
    assert(refused(Sequential().add(ReLU())) === "the network has no parameters")
    val other = Sequential().add(linear(3, 2, "first")).add(mkldnn.ReLU().setName("second"))
    assert(refused(other).startsWith(s"layer second is a ${classOf[mkldnn.ReLU].getName}, which"))
    NetworkLayers.check(Sequential().add(linear(3, 2, "first")).add(ReLU()))
  }
}
