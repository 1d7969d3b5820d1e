// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicLong

import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.dllib.utils.DistriParameterSynchronizer

/** Callbacks of the gates of a replica's layers, on the thread that computes the replica. */
private[bigdl] trait LayerListener {

  /** Wait for the parameters of a layer, which forward is about to use. */
  def onUse(replica: Int, layer: Int): Unit

  /** Handle gradients that backward has added to those of a layer. */
  def onGradients(replica: Int, layer: Int): Unit
}

/**
 * Gate of all leaves of one replica. In training, BigDL calls [[get]] when the forward pass of a
 * leaf begins, and [[put]] when its backward pass has ended.
 *
 * BigDL clones some layers by serialization, such as the cells of a recurrent layer. The clones
 * share this gate.
 *
 * @param layers by the names of the leaves
 */
private[bigdl] final class LayerGate(replica: Int, layers: Map[String, Int], events: LayerListener)
    extends DistriParameterSynchronizer[Float]
    with Serializable {
  private val id = LayerGate.register(this)

  override def get(name: String): (Tensor[Float], Tensor[Float]) = {
    layers.get(name).foreach(events.onUse(replica, _))
    LayerGate.NoTensors
  }

  override def put(name: String): Unit = layers.get(name).foreach(events.onGradients(replica, _))

  override def init(
      name: String,
      globalSize: Int,
      priority: Int,
      weights: Tensor[Float],
      grads: Tensor[Float]
  ): Unit = ()

  /**
   * Forget this gate. Clones made from now on do not have it. Until then it is never
   * garbage-collected, nor is what it refers to.
   */
  override def clear(): Unit = LayerGate.open.remove(id)

  private def writeReplace(): AnyRef = new LayerGate.Reference(id)
}

private[bigdl] object LayerGate {
  private val open = new ConcurrentHashMap[Long, LayerGate]
  private val ids = new AtomicLong

  /** Result of [[get]]: the optimizer has nothing to do with parameters that have just arrived. */
  private val NoTensors = (null: Tensor[Float], null: Tensor[Float])

  /** Number of gates that are not cleared. */
  private[bigdl] def registered: Int = open.size

  private def register(gate: LayerGate): Long = {
    val id = ids.incrementAndGet()
    open.put(id, gate)
    id
  }

  final class Reference(id: Long) extends Serializable {
    private def readResolve(): AnyRef = open.get(id)
  }
}

/**
 * Count of each layer's uses in a step. The first step shows it: all parameters are there, and
 * gradients travel at its end. Some layers never report a use, such as those inside of a recurrent
 * cell. Some report several uses.
 */
private[bigdl] final class LayerUses(layers: Int) {
  private val forward, backward = new Array[Int](layers)
  private var madeCounts = new Array[Int](layers)
  private var isCounted = false

  /** End a step. The first one ends the count. */
  def endStep(): Unit = {
    isCounted = true
    madeCounts = new Array[Int](layers)
  }

  def recordUse(layer: Int): Unit = if (!isCounted) forward(layer) += 1

  /** Layers whose use in forward is never reported. They must have arrived before it begins. */
  lazy val unreported: IndexedSeq[Int] = forward.indices.filter(forward(_) == 0)

  /** Count gradients that backward added to a layer's. Return true if these are complete now. */
  def isComplete(layer: Int): Boolean =
    if (isCounted) {
      madeCounts(layer) += 1
      madeCounts(layer) == backward(layer)
    } else {
      backward(layer) += 1
      false
    }

  /** Return true if gradients arrive that should have been pushed before. */
  def isTooLate(layer: Int): Boolean =
    isCounted && backward(layer) > 0 && madeCounts(layer) > backward(layer)
}
