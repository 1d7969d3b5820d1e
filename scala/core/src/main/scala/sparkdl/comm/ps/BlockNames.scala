package sparkdl.comm.ps

/** Blocks are named by shard, batch and version (and by job, which the block bridge adds). */
object BlockNames {
  def parameters(server: Int, batch: Int, version: Long): String = s"sparkdl_p_${server}_${batch}_$version"

  def gradients(worker: Int, server: Int, batch: Int, version: Long): String =
    s"sparkdl_g_${worker}_${server}_${batch}_$version"
}
