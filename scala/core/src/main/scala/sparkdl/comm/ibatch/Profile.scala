package sparkdl.comm.ibatch

/**
 * What was measured of a network on a cluster, layer by layer, in the order in which forward computes them.
 *
 * Pull and push have one of their own each. A push is a pull that runs backwards in time: backward computes the last layer
 * first, and what must be pulled before a layer is computed must be pushed after it. So all that is said of pulls holds for
 * pushes, with `compute` as the times of backward.
 *
 * @param startup seconds that one communication takes before its first byte (the paper's T_s)
 * @param transfer seconds to transfer each layer's parameters, or gradients (T_t)
 * @param compute seconds of each layer's forward, or backward (C)
 * @param bytes of each layer; empty if unknown. [[Policy.Fixed]] needs them.
 * @param noticeBytes batches of so many bytes, or fewer, come with the notices that they are there
 * @param gap
 *   seconds of a start-up that follow those of others, the rest overlaps with them; all of it if that is not known. For a plan
 *   of one direction alone all do, as in the paper
 * @param sum seconds to add up each layer's gradients; empty: none. Likewise `update`: the optimizer, and publishing
 * @param inTurn a batch is asked for when the one before is here, as the paper's one thread does it
 */
private[ibatch] final case class Profile(
    startup: Double,
    transfer: IndexedSeq[Double],
    compute: IndexedSeq[Double],
    bytes: IndexedSeq[Long] = IndexedSeq.empty,
    noticeBytes: Long = 0,
    inTurn: Boolean = false,
    gap: Option[Double] = None,
    sum: IndexedSeq[Double] = IndexedSeq.empty,
    update: IndexedSeq[Double] = IndexedSeq.empty
) {
  private def times = (startup +: (transfer ++ compute ++ sum ++ update)) ++ gap
  require(transfer.nonEmpty, "a profile has at least one layer")
  require(
    transfer.size == compute.size && (bytes.isEmpty || bytes.size == transfer.size),
    s"a profile has as many layers in transfer (${transfer.size}) as in compute (${compute.size}) and bytes (${bytes.size})"
  )
  require(
    times.forall(time => time >= 0 && time < Double.PositiveInfinity),
    "a profile's times are finite and not negative"
  )
  require(bytes.forall(_ >= 0), "a profile's bytes are not negative")
  require(
    Seq(sum, update).forall(layers => layers.isEmpty || layers.size == transfer.size),
    "a profile has sums and updates of all layers, or none"
  )
  require(gap.forall(_ <= startup), "a profile's gap is a part of its start-up")

  def layers: Int = transfer.size

  /** Whether nobody has to fetch a batch; not known without [[bytes]]. */
  def comesWithNotice(batch: Batch): Boolean =
    bytes.nonEmpty && bytes.slice(batch.first - 1, batch.last).sum <= noticeBytes
}
