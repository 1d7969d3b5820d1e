package sparkdl.comm.ibatch

/** Direction in which layers travel. */
private[ibatch] sealed abstract class Direction(val name: String, plural: String) {

  /** Return a count of batches as text, for example "7 pulls". */
  def count(batches: Int): String = s"$batches ${if (batches == 1) name else plural}"

  /** Put values in the order of the layers into the order of transfer. */
  def inTransferOrder[T](layers: IndexedSeq[T]): IndexedSeq[T]
}

private[ibatch] object Direction {
  case object Pull extends Direction("pull", "pulls") {
    override def inTransferOrder[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers
  }

  /** Gradients, which backward makes for the last layer first. */
  case object Push extends Direction("push", "pushes") {
    override def inTransferOrder[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers.reverse
  }

  /**
   * Return the direction of this name.
   *
   * @throws IllegalArgumentException if there is none
   */
  def apply(name: String): Direction = Seq(Pull, Push)
    .find(_.name == name)
    .getOrElse(throw new IllegalArgumentException(s"direction=$name does not exist: set pull or push"))
}
