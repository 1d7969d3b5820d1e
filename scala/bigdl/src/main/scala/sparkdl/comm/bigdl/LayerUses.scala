package sparkdl.comm.bigdl

/**
 * Count of each layer's uses in a step. The first step shows it: all parameters are there, and gradients travel at its
 * end. Some layers never report a use, such as those inside of a recurrent cell. Some report several uses.
 */
private[bigdl] final class LayerUses(layers: Int) {
  private val forward, backward = new Array[Int](layers)
  private var made = new Array[Int](layers)
  private var known = false

  /** End a step. The first one ends the count. */
  def endStep(): Unit = {
    known = true
    made = new Array[Int](layers)
  }

  def needed(layer: Int): Unit = if (!known) forward(layer) += 1

  /** Layers whose use in forward is never reported. They must have arrived before it begins. */
  lazy val silent: IndexedSeq[Int] = forward.indices.filter(forward(_) == 0)

  /** Count gradients that backward added to a layer's. Return true if these are complete now. */
  def isComplete(layer: Int): Boolean =
    if (known) {
      made(layer) += 1
      made(layer) == backward(layer)
    } else {
      backward(layer) += 1
      false
    }

  /** Return true if gradients arrive that should have been pushed before. */
  def isTooLate(layer: Int): Boolean = known && backward(layer) > 0 && made(layer) > backward(layer)
}
