package sparkdl.comm.bigdl

/**
 * Count of each layer's uses in a step. The first step shows it: all parameters are there, and gradients travel at its
 * end. Some layers never report a use, such as those inside of a recurrent cell. Some report several uses.
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
  def isTooLate(layer: Int): Boolean = isCounted && backward(layer) > 0 && madeCounts(layer) > backward(layer)
}
