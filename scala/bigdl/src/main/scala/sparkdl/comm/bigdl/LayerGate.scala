package sparkdl.comm.bigdl

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicLong

import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.dllib.utils.DistriParameterSynchronizer

/** What the gates of a replica's layers tell. Called by the thread that computes the replica. */
private[bigdl] trait LayerEvents {

  /** Forward is about to use the parameters of a layer: returns when they are here. */
  def needed(replica: Int, layer: Int): Unit

  /** Backward has added to the gradients of a layer. */
  def made(replica: Int, layer: Int): Unit
}

/**
 * Stands before each leaf of one replica: BigDL calls [[get]] when the forward pass of a leaf begins, in training, and [[put]]
 * when its backward pass has ended.
 *
 * BigDL clones some layers by serialization, such as the cells of a recurrent one: the clones have this same gate.
 *
 * @param layers by the names of the leaves
 */
private[bigdl] final class LayerGate(replica: Int, layers: Map[String, Int], events: LayerEvents)
    extends DistriParameterSynchronizer[Float]
    with Serializable {
  private val id = LayerGate.register(this)

  override def get(name: String): (Tensor[Float], Tensor[Float]) = {
    layers.get(name).foreach(events.needed(replica, _))
    LayerGate.Nothing
  }

  override def put(name: String): Unit = layers.get(name).foreach(events.made(replica, _))

  override def init(
      name: String,
      globalSize: Int,
      priority: Int,
      weights: Tensor[Float],
      grads: Tensor[Float]
  ): Unit = ()

  /** Clones made from now on do not have it. Before that it is not garbage, nor is what it knows. */
  override def clear(): Unit = LayerGate.open.remove(id)

  private def writeReplace(): AnyRef = new LayerGate.Reference(id)
}

private[bigdl] object LayerGate {
  private val open = new ConcurrentHashMap[Long, LayerGate]
  private val ids = new AtomicLong

  /** The optimizer has nothing to do with what a layer has just got. */
  private val Nothing = (null: Tensor[Float], null: Tensor[Float])

  /** How many are not cleared. */
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
