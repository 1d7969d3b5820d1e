package sparkdl.comm.flow

/**
 * Which block is transferred next. What is to be delayed is wanted later, and what is to be dropped is cancelled, by
 * whoever wants blocks.
 */
private[comm] trait Policy {

  /**
   * Negative if `one` goes before `other`; 0 if they are equal to it: then a block goes first whose peer has
   * the least in flight, and of those the one whose turn it is. An order of all blocks that stays the same while they
   * wait.
   */
  def compare(one: Wanted, other: Wanted): Int
}

private[comm] object Policy {

  /** What is most urgent, whoever waits for it. */
  val Urgent: Policy = (one, other) =>
    if (one.urgency.phase != other.urgency.phase) java.lang.Long.compare(one.urgency.phase, other.urgency.phase)
    else Integer.compare(one.urgency.order, other.urgency.order)
}
