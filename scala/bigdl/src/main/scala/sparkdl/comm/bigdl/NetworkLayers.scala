// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.nn.mkldnn.MklDnnModule
import com.intel.analytics.bigdl.dllib.tensor.Tensor

/**
 * Layers of a network: stretches of its flat vector of parameters, each of one leaf. A stretch that
 * belongs to no leaf is a layer too.
 *
 * @param starts the first element of each layer
 * @param total elements of the vector
 * @param leaves with parameters, each with the number of its layer
 */
private[bigdl] final class NetworkLayers private (
    val starts: IndexedSeq[Int],
    val total: Int,
    val leaves: Seq[(Network, Int)]
) {
  val counts: IndexedSeq[Int] = starts.zip(starts.tail :+ total).map { case (start, end) =>
    end - start
  }
  def size: Int = starts.size

  /** Number of each leaf's layer, by the leaf's name. */
  val layerOf: Map[String, Int] = leaves.map { case (leaf, layer) => leaf.getName() -> layer }.toMap
}

private[bigdl] object NetworkLayers {

  /**
   * Check a network.
   *
   * @throws UnsupportedTrainingException if it has no parameters, or layers that are not supported
   */
  def check(network: Network): Unit = {
    val leaves = SparkdlBigDL.leaves(network)
    leaves.foreach {
      case leaf: MklDnnModule =>
        throw new UnsupportedTrainingException(
          s"layer ${leaf.asInstanceOf[Network].getName()} is a ${leaf.getClass.getName}, which" +
            " keeps parameters in its own memory: use the layer of nn that does the same"
        )
      case _ =>
    }
    if (leaves.forall(parametersOf(_).isEmpty))
      throw new UnsupportedTrainingException("the network has no parameters")
    apply(network, SparkdlBigDL.flatten(network)._1.nElement())
  }

  /**
   * Find the layers of a network.
   *
   * @param network whose parameters lie in one flat vector, as `getParameters` leaves them
   * @param total elements of that vector
   * @throws UnsupportedTrainingException if two leaves with different parameters have the same name
   */
  def apply(network: Network, total: Int): NetworkLayers = {
    val found = for {
      leaf <- SparkdlBigDL.leaves(network)
      parameters = parametersOf(leaf) if parameters.nonEmpty
    } yield {
      val first = parameters.map(_.storageOffset() - 1).min
      leaf -> (first -> parameters.map(tensor => tensor.storageOffset() - 1 + tensor.nElement()).max)
    }
    val bounds = found.flatMap { case (_, (first, end)) => Seq(first, end) }
    val starts = (0 +: bounds).filter(_ < total).distinct.sorted.toIndexedSeq
    val leaves = found.map { case (leaf, (first, _)) => leaf -> starts.indexOf(first) }
    leaves.groupBy(_._1.getName()).foreach { case (name, same) =>
      if (same.map(_._2).distinct.size > 1)
        throw new UnsupportedTrainingException(
          s"${same.size} layers with parameters are called $name: give each a name, by setName"
        )
    }
    new NetworkLayers(starts, total, leaves)
  }

  private def parametersOf(leaf: Network): Seq[Tensor[Float]] =
    Option(leaf.parameters()).toSeq.flatMap(_._1).filter(_.nElement() > 0)
}
