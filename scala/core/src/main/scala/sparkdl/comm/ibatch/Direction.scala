package sparkdl.comm.ibatch

/** Which way layers travel. */
private[ibatch] sealed abstract class Direction(val name: String, plural: String) {

  /** As in "7 pulls". */
  def count(batches: Int): String = s"$batches ${if (batches == 1) name else plural}"

  /** What is in the order of the layers, in the order in which they travel. */
  def travelling[T](layers: IndexedSeq[T]): IndexedSeq[T]
}

private[ibatch] object Direction {
  case object Pull extends Direction("pull", "pulls") {
    override def travelling[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers
  }

  /** Backward makes the gradients of the last layer first. */
  case object Push extends Direction("push", "pushes") {
    override def travelling[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers.reverse
  }

  /** @throws IllegalArgumentException if there is none of this name */
  def apply(name: String): Direction = Seq(Pull, Push)
    .find(_.name == name)
    .getOrElse(throw new IllegalArgumentException(s"direction $name: pull or push"))
}
