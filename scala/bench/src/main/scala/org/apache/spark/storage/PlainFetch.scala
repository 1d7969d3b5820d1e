package org.apache.spark.storage

import java.nio.ByteBuffer

import org.apache.spark.SparkEnv

import sparkdl.comm.transport.BlockServer

/** A whole block in one buffer, as Spark fetches broadcasts: what FetchBench compares with. */
object PlainFetch {
  def apply(from: BlockServer, job: Long, name: String): ByteBuffer = {
    val id = BroadcastBlockId(job, name).name
    val service = SparkEnv.get.blockManager.blockTransferService
    service.fetchBlockSync(from.host, from.port, from.executorId, id, null).nioByteBuffer
  }
}
