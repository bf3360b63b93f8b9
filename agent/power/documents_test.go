package power

// Documents of Redfish services, in the shapes of DMTF's mockups (public-rackmount1 of DSP2043) and
// of vendors' services. The documents are cut to links, states and figures, and keep each service's
// oddities.
const (
	// The documents follow both schemas, with different figures as in the mockup. One of two power
	// supplies is absent.
	dmtf = `/redfish/v1/Chassis {"@odata.type":"#ChassisCollection.ChassisCollection","Members@odata.count":1,"Members":[{"@odata.id":"/redfish/v1/Chassis/1U"}]}
/redfish/v1/Chassis/1U {"@odata.type":"#Chassis.v1_21_0.Chassis","Id":"1U","ChassisType":"RackMount","Status":{"State":"Enabled","Health":"OK"},"Links":{"ComputerSystems":[{"@odata.id":"/redfish/v1/Systems/437XR1138R2"}]},
 "PowerSubsystem":{"@odata.id":"/redfish/v1/Chassis/1U/PowerSubsystem"},"EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/1U/EnvironmentMetrics"},"Power@Redfish.Deprecated":"Please migrate","Power":{"@odata.id":"/redfish/v1/Chassis/1U/Power"}}
/redfish/v1/Chassis/1U/EnvironmentMetrics {"@odata.type":"#EnvironmentMetrics.v1_3_0.EnvironmentMetrics","TemperatureCelsius":{"Reading":39},"PowerWatts":{"Reading":374,"DataSourceUri":"/redfish/v1/Chassis/1U/Sensors/TotalPower"},"PowerLimitWatts":{"SetPoint":500}}
/redfish/v1/Chassis/1U/PowerSubsystem {"@odata.type":"#PowerSubsystem.v1_1_0.PowerSubsystem","CapacityWatts":2000,"PowerSupplies":{"@odata.id":"/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies"}}
/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies {"Members":[{"@odata.id":"/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies/Bay1"},{"@odata.id":"/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies/Bay2"}]}
/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies/Bay1 {"Id":"Bay1","Status":{"State":"Enabled","Health":"Warning"},"Metrics":{"@odata.id":"/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies/Bay1/Metrics"}}
/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies/Bay2 {"Id":"Bay2","Status":{"State":"Absent"}}
/redfish/v1/Chassis/1U/PowerSubsystem/PowerSupplies/Bay1/Metrics {"InputVoltage":{"Reading":230.2},"InputPowerWatts":{"DataSourceUri":"/redfish/v1/Chassis/1U/Sensors/PS1InputPower","Reading":937.4},"OutputPowerWatts":{"Reading":800}}
/redfish/v1/Chassis/1U/Power {"@odata.type":"#Power.v1_7_1.Power","PowerControl":[{"@odata.id":"/redfish/v1/Chassis/1U/Power#/PowerControl/0","MemberId":"0","Name":"System Input Power","PowerConsumedWatts":344,"PowerMetrics":{"IntervalInMin":30,"AverageConsumedWatts":319}}],"PowerSupplies":[{"MemberId":"0","Status":{"State":"Enabled"},"LastPowerOutputWatts":325}]}`

	// Dell: only Power; a drive enclosure in the chassis that repeats the chassis' figures; figures
	// with fractions; a collection with many properties.
	dell = `/redfish/v1/Chassis {"Members":[{"@odata.id":"/redfish/v1/Chassis/System.Embedded.1"},{"@odata.id":"/redfish/v1/Chassis/Enclosure.Internal.0-1:NonRAID.Integrated.1-1"}],"Members@odata.count":2}
/redfish/v1/Chassis/System.Embedded.1 {"Id":"System.Embedded.1","ChassisType":"StandAlone","Power":{"@odata.id":"/redfish/v1/Chassis/System.Embedded.1/Power"},"Links":{"Contains":[{"@odata.id":"/redfish/v1/Chassis/Enclosure.Internal.0-1:NonRAID.Integrated.1-1"}]}}
/redfish/v1/Chassis/Enclosure.Internal.0-1:NonRAID.Integrated.1-1 {"Id":"Enclosure.Internal.0-1","Power":{"@odata.id":"/redfish/v1/Chassis/System.Embedded.1/Power"},"Links":{"ContainedBy":{"@odata.id":"/redfish/v1/Chassis/System.Embedded.1"}}}
/redfish/v1/Chassis/System.Embedded.1/Power {"PowerControl":[{"MemberId":"PowerControl","Name":"System Power Control","PowerAllocatedWatts":1302,"PowerConsumedWatts":712.0,"PowerMetrics":{"IntervalInMin":1.0,"AverageConsumedWatts":700}}],
 "PowerSupplies":[{"MemberId":"PSU.Slot.1","PowerInputWatts":368.5,"PowerOutputWatts":343,"Status":{"State":"Enabled","Health":"OK"}},{"MemberId":"PSU.Slot.2","PowerInputWatts":350,"Status":{"State":"Enabled"}}]}`

	// HPE: links end with a slash; supplies report only their output; MemberId is a number.
	hpe = `/redfish/v1/Chassis {"Members":[{"@odata.id":"/redfish/v1/Chassis/1/"}]}
/redfish/v1/Chassis/1 {"Id":"1","ChassisType":"RackMount","Power":{"@odata.id":"/redfish/v1/Chassis/1/Power/"},"Links":{"ManagedBy":[]}}
/redfish/v1/Chassis/1/Power {"@odata.type":"#Power.v1_3_0.Power","PowerControl":[{"@odata.id":"/redfish/v1/Chassis/1/Power/#PowerControl/0","MemberId":0,"PowerCapacityWatts":1600,"PowerConsumedWatts":219}],
 "PowerSupplies":[{"MemberId":0,"LastPowerOutputWatts":108,"Status":{"State":"Enabled"}},{"MemberId":1,"LastPowerOutputWatts":97,"Status":{"State":"Enabled"}}]}`

	// Lenovo: controls of CPUs and memory beside the server's.
	lenovo = `/redfish/v1/Chassis {"Members":[{"@odata.id":"/redfish/v1/Chassis/1"}]}
/redfish/v1/Chassis/1 {"Id":"1","Power":{"@odata.id":"/redfish/v1/Chassis/1/Power"}}
/redfish/v1/Chassis/1/Power {"PowerControl":[{"MemberId":"1","Name":"CPU Sub-system Power","PhysicalContext":"CPUSubsystem","PowerConsumedWatts":130},{"MemberId":"0","Name":"Server Power Control","PhysicalContext":"Chassis","PowerConsumedWatts":388},{"MemberId":"2","PhysicalContext":"MemorySubsystem","PowerConsumedWatts":21}],
 "PowerSupplies":[{"PowerInputWatts":null,"Status":{"State":"Enabled"}}]}`

	// Supermicro: figures in quotes, an empty link, a supply in a slot without cable.
	supermicro = `/redfish/v1/Chassis {"Members":[{"@odata.id":"/redfish/v1/Chassis/1"}]}
/redfish/v1/Chassis/1 {"Id":"1","EnvironmentMetrics":{},"PowerSubsystem":null,"Power":{"@odata.id":"/redfish/v1/Chassis/1/Power"},"Links":{"ContainedBy":null}}
/redfish/v1/Chassis/1/Power {"PowerControl":[{"MemberId":"0","PowerConsumedWatts":"451"}],"PowerSupplies":[{"PowerInputWatts":"460","Status":{"State":"Enabled"}},{"PowerInputWatts":0,"Status":{"State":"Disabled"}}]}`

	// NVIDIA HGX: a chassis for each GPU, inside the baseboard's chassis, inside the machine's.
	hgx = `/redfish/v1/Chassis {"Members":[{"@odata.id":"/redfish/v1/Chassis/HGX_GPU_SXM_1"},{"@odata.id":"/redfish/v1/Chassis/HGX_Chassis_0"},{"@odata.id":"/redfish/v1/Chassis/DGX"},{"@odata.id":"/redfish/v1/Chassis/gone"}]}
/redfish/v1/Chassis/HGX_GPU_SXM_1 {"Id":"HGX_GPU_SXM_1","EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/HGX_GPU_SXM_1/EnvironmentMetrics"},"Links":{"ContainedBy":{"@odata.id":"/redfish/v1/Chassis/HGX_Chassis_0"}}}
/redfish/v1/Chassis/HGX_GPU_SXM_1/EnvironmentMetrics {"PowerWatts":{"Reading":651.25}}
/redfish/v1/Chassis/HGX_Chassis_0 {"Id":"HGX_Chassis_0","Links":{"ContainedBy":{"@odata.id":"/redfish/v1/Chassis/DGX"}}}
/redfish/v1/Chassis/DGX {"Id":"DGX","EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/DGX/EnvironmentMetrics"},"PowerSubsystem":{"@odata.id":"/redfish/v1/Chassis/DGX/PowerSubsystem"}}
/redfish/v1/Chassis/DGX/EnvironmentMetrics {"PowerWatts":{"Reading":7421.5,"ApparentVA":null}}
/redfish/v1/Chassis/DGX/PowerSubsystem {"Allocation":[],"PowerSupplies":{"@odata.id":"/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies"}}
/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies {"Members":[{"@odata.id":"/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies/PSU0"}]}
/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies/PSU0 {"Status":{"State":"Enabled"},"Metrics":{"@odata.id":"/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies/PSU0/Metrics"}}
/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies/PSU0/Metrics {"InputPowerWatts":{"Reading":null}}`

	// Two machines behind one controller.
	blades = `/redfish/v1/Chassis {"Members":[{"@odata.id":"/redfish/v1/Chassis/Blade1"},{"@odata.id":"/redfish/v1/Chassis/Blade2"}]}
/redfish/v1/Chassis/Blade1 {"Id":"Blade1","EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/Blade1/EnvironmentMetrics"}}
/redfish/v1/Chassis/Blade1/EnvironmentMetrics {"PowerWatts":{"Reading":300}}
/redfish/v1/Chassis/Blade2 {"Id":"Blade2","EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/Blade2/EnvironmentMetrics"}}
/redfish/v1/Chassis/Blade2/EnvironmentMetrics {"PowerWatts":{"Reading":310}}`
)
