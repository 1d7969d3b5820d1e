package sparkdl.comm.bigdl

/**
 * How often a step uses each layer. The first step shows it, in which all parameters are here and gradients travel at the end:
 * some layers never say that they are used, as those inside of a recurrent cell, and some say so several times.
 */
private[bigdl] final class LayerUses(layers: Int) {
  private val forward, backward = new Array[Int](layers)
  private var made = new Array[Int](layers)
  private var known = false

  /** A step ends, or the first one. */
  def endStep(): Unit = {
    known = true
    made = new Array[Int](layers)
  }

  def needed(layer: Int): Unit = if (!known) forward(layer) += 1

  /** Layers that forward uses without a word: they must be here before it begins. */
  lazy val silent: IndexedSeq[Int] = forward.indices.filter(forward(_) == 0)

  /** Backward added to a layer's gradients: whether they are complete now. */
  def isComplete(layer: Int): Boolean =
    if (known) {
      made(layer) += 1
      made(layer) == backward(layer)
    } else {
      backward(layer) += 1
      false
    }

  /** Whether gradients come that should have been pushed before. */
  def isTooLate(layer: Int): Boolean = known && backward(layer) > 0 && made(layer) > backward(layer)
}
