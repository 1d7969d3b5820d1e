package sparkdl.comm.transport

/**
 * Wrapper of Spark's transport, which the plugin loads with java.util.ServiceLoader. The plugin's own jar has none. The
 * jar of the benchmarks has one that emulates slow connections.
 */
trait TransportWrapper {
  def wrap(transport: Transport): Transport
}
