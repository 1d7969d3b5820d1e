package sparkdl.comm.ps

/** Blocks are named by shard, bucket and version (and by job, which the block bridge adds). */
private[ps] object BlockNames {
  def parameters(server: Int, bucket: Int, version: Long): String = s"sparkdl_p_${server}_${bucket}_$version"

  def gradients(worker: Int, server: Int, bucket: Int, version: Long): String =
    s"sparkdl_g_${worker}_${server}_${bucket}_$version"
}
